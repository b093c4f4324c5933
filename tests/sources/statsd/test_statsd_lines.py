"""Lines of StatsD in vectors equal the same lines read one by one."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.sources.statsd import statsd_lines
from headwater.sources.statsd.statsd_lines import EXAMPLES_MAX, parse, pieces

AT = 1_700_000_000_000_000
KINDS = {"c": "counter", "g": "gauge", "ms": "timer", "h": "histogram", "d": "distribution", "s": "set"}
NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def rows(*datagrams: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parse([(AT, datagram) for datagram in datagrams]).columns.to_pylist()
    for row in found:
        row["at"] = round(row["at"].timestamp() * 1_000_000)
        row["tags"] = None if row["tags"] is None else dict(row["tags"])
    return found


def one_by_one(line: str) -> list[dict[str, Any]] | None:
    """What a line says; None if it is malformed. The plainest that it could be."""
    head, *fields = line.split("|")
    name, colon, value = head.partition(":")
    if (
        not name
        or not colon
        or not value
        or not fields
        or fields[0] not in KINDS
        or re.search(r"[\x00-\x1f]", name)
    ):
        return None
    letter, rate, tags, at = fields[0], 1.0, None, AT
    seen: set[str] = set()
    for field in fields[1:]:
        if field.startswith("@"):
            if "@" not in seen:
                if not NUMBER.fullmatch(field[1:]) or not 0 < float(field[1:]) <= 1:
                    return None
                rate = float(field[1:])
            seen.add("@")
        elif field.startswith("#"):
            if "#" not in seen:
                pairs = [tag.partition(":") for tag in field[1:].split(",")]
                tags = {k: v if c else None for k, c, v in pairs if k} or None
            seen.add("#")
        elif field.startswith("T"):
            if "T" not in seen:
                if not re.fullmatch("[0-9]{1,11}", field[1:]):
                    return None
                at = int(field[1:]) * 1_000_000
            seen.add("T")
        elif not field.startswith(("c:", "e:", "card:")):
            return None
    found = []
    for one in [value] if letter == "s" else value.split(":"):
        kind, member, number = KINDS[letter], None, None
        if letter == "s":
            member = one
        else:
            if not NUMBER.fullmatch(one.lstrip("+-")) or len(one) - len(one.lstrip("+-")) > 1:
                return None
            number = float(one)
            if not math.isfinite(number):
                return None
            if letter == "g" and one[0] in "+-":
                kind = "gauge_change"
        row = {"name": name, "kind": kind, "value": number, "rate": rate}
        found.append({**row, "tags": tags, "at": at, "member": member})
    return found


def test_every_kind_of_line() -> None:
    found = rows(
        b"hits:1|c\nhits:3|c|@0.1",
        b"queue:7|g\nqueue:-2|g\nqueue:+3|g\n",
        b"took:12.5|ms\nsize:1:2:3|h|#env:prod,debug\nload:1e3|d|T1600000000",
        b"users:ann:7|s|#env:a,env:b",
    )
    assert [(row["name"], row["kind"], row["value"], row["rate"]) for row in found] == [
        ("hits", "counter", 1.0, 1.0),
        ("hits", "counter", 3.0, 0.1),
        ("queue", "gauge", 7.0, 1.0),
        ("queue", "gauge_change", -2.0, 1.0),
        ("queue", "gauge_change", 3.0, 1.0),
        ("took", "timer", 12.5, 1.0),
        *(("size", "histogram", value, 1.0) for value in (1.0, 2.0, 3.0)),
        ("load", "distribution", 1000.0, 1.0),
        ("users", "set", None, 1.0),
    ]
    assert found[6]["tags"] == {"env": "prod", "debug": None}
    assert found[-1]["tags"] == {"env": "b"}  # the last of a name counts
    assert found[-1]["member"] == "ann:7"
    assert [row["at"] for row in found[-2:]] == [1_600_000_000_000_000, AT]


@pytest.mark.parametrize(
    "line",
    [
        b"nothing",
        b":1|c",
        b"a:|c",
        b"a:1",
        b"a:1|",
        b"a:1|x",
        b"a:one|c",
        b"a:nan|g",
        b"a:inf|g",
        b"a:1e999|g",
        b"a:--1|g",
        b"a:1:x|h",
        b"a:1:|h",
        b"a:1|c|@0",
        b"a:1|c|@2",
        b"a:1|c|@x",
        b"a:1|c|@",
        b"a:1|c|T",
        b"a:1|c|what",
        b"a\x00b:1|c",
        b"\xff:1|c",
        b"_e{5,4}:title|text",
        b"_sc|check|0",
        b" ",
    ],
)
def test_what_is_no_metric_is_counted_and_shown_and_changes_nothing(line: bytes) -> None:
    parsed = parse([(AT, b"before:1|c\n" + line + b"\nafter:2|c")])
    assert parsed.columns["name"].to_pylist() == ["before", "after"]
    assert (parsed.lines, parsed.malformed) == (2, 1)
    assert parsed.examples == (line.decode("utf-8", "replace").replace("\x00", "\\x00"),)


def test_the_last_malformed_lines_are_kept_and_not_in_full_length() -> None:
    parsed = parse([(AT, b"\n".join(b"bad %d" % n + b"x" * 500 for n in range(20)))])
    assert parsed.malformed == 20
    assert parsed.columns.num_rows == 0
    assert [example.split("x")[0] for example in parsed.examples] == [f"bad {n}" for n in range(15, 20)]
    assert len(parsed.examples) == EXAMPLES_MAX
    assert max(map(len, parsed.examples)) <= 120


def test_values_that_would_repeat_their_name_and_tags_without_bound_are_malformed() -> None:
    name, tags = b"n" * 20_000, b"|#t:" + b"x" * 6_000
    fits, too_wide = b":1" * 10, b":1" * 11
    parsed = parse(
        [(1, b"\n".join([name + fits + b"|c" + tags, name + too_wide + b"|c" + tags, b"a:1|c", b"b:1:2|c"]))]
    )
    assert (parsed.lines, parsed.malformed, parsed.columns.num_rows) == (3, 1, 13)
    assert parsed.columns["name"].to_pylist()[10:] == ["a", "b", "b"]


def test_pieces_are_all_of_it_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statsd_lines, "PIECE_BYTES", 10)
    received = [(at, b"x" * size) for at, size in enumerate((3, 7, 1, 50, 5, 5, 5))]
    found = list(pieces(received))
    assert [one for piece in found for one in piece] == received
    assert [len(piece) for piece in found] == [2, 1, 1, 2, 1]
    assert list(pieces([])) == []


def test_a_line_that_would_write_to_a_terminal_is_shown_and_not_obeyed() -> None:
    assert parse([(AT, "\x1b[2Jgone\tü".encode())]).examples == ("\\x1b[2Jgone\\x09ü",)


def test_nothing_and_empty_lines_are_nothing() -> None:
    for received in ([], [(AT, b"")], [(AT, b"\n\n"), (AT, b"\r\n")]):
        parsed = parse(received)
        assert (parsed.columns.num_rows, parsed.lines, parsed.malformed) == (0, 0, 0)


def test_each_datagram_has_the_time_at_which_it_came() -> None:
    parsed = parse([(AT, b"a:1|c\nb:1|c\r"), (AT + 5, b"\nc:1|c")])
    assert [round(at.timestamp() * 1e6) - AT for at in parsed.columns["at"].to_pylist()] == [0, 0, 5]


_piece = st.sampled_from(
    [
        "a",
        "web.hits",
        "ü",
        ":",
        "|",
        "1",
        "-2",
        "+3.5",
        ".5",
        "1e3",
        "c",
        "g",
        "ms",
        "h",
        "d",
        "s",
        "@",
        "0.1",
        "#",
        "env:prod",
        ",",
        "T",
        "1600000000",
        "c:",
        "e:",
        "x",
        "\r",
    ]
)
_line = st.one_of(
    st.lists(_piece, max_size=12).map("".join),
    st.builds(
        "{}:{}|{}{}{}".format,
        st.sampled_from(["a", "web.hits", "b c", ""]),
        st.sampled_from(["1", "-1", "+2", "1:2", "x", "", "1e400", "7."]),
        st.sampled_from([*KINDS, "q"]),
        st.sampled_from(["", "|@0.5", "|@1.5", "|#a:b,c", "|T12", "|c:x", "|#", "|@"]),
        st.sampled_from(["", "|@0.25", "|#d:e", "|T13", "|zz", "|card:low"]),
    ),
)


@given(st.lists(st.lists(_line, max_size=4), max_size=4))
@example([["a:1|c|@0.5|@7"], ["a:1|s|#"]])
@example([["a:1|c|TT", "a:1|c|@x|@0.5", "a:1|c|Tx|T5"]])
def test_all_at_once_is_as_one_by_one(datagrams: list[list[str]]) -> None:
    texts = [line.rstrip("\r") for lines in datagrams for line in lines]
    said = [(line, one_by_one(line)) for line in texts if line]
    parsed = parse([(AT, "\n".join(lines).encode()) for lines in datagrams])
    assert rows(*("\n".join(lines).encode() for lines in datagrams)) == [
        row for _, found in said for row in found or ()
    ]
    assert parsed.malformed == sum(found is None for _, found in said)
    assert parsed.lines == sum(found is not None for _, found in said)
    bad = [line.replace("\r", "\\x0d") for line, found in said if found is None]
    assert parsed.examples == tuple(bad[-EXAMPLES_MAX:])
