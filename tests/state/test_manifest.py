"""A manifest comes back from its file as it was, cheaply, and damage is noticed."""

import dataclasses
import statistics
import time
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import CorruptionError, NewerVersionError
from headwater.core.positions import Token
from headwater.state.manifest import (
    FORMAT,
    CollectionRecord,
    Manifest,
    ViewState,
    decode_schema,
    encode_schema,
)
from headwater.state.run_refs import RunRef
from tests.raising import raises
from tests.state.ticks import SCHEMA, some_ref

TEXT = encode_schema(SCHEMA)
NAME = "state/manifests/000000000007.json"


def made(**changes: Any) -> Manifest:
    stopped = ViewState(
        "b",
        2,
        "stopped",
        "b@2/out",
        TEXT,
        reason="division by zero",
        last_tick=5,
        positions={"t": {0: 3}},
    )
    facts: dict[str, Any] = {
        "tick": 7,
        "epoch": 2,
        "committed_at": 1_700_000_000_000_000,
        "sequence": 41,
        "positions": {"clicks": {0: 3, 11: 4}, 'odd "name"\n': {0: 2**62}},
        "arrangements": {"a@1/agg.0": (some_ref(), some_ref(2, offset=6400)), "b@2/out": ()},
        "views": {
            "a": ViewState(
                "a", 1, "live", "a@1/out", TEXT, change=some_ref(3), record=CollectionRecord(key=(0,))
            ),
            "b": stopped,
        },
        "extra": {"catalog": 3},
    }
    return Manifest(**(facts | changes))


def test_a_manifest_comes_back_as_it_was() -> None:
    manifest = made()
    back = Manifest.decode(manifest.encode(), NAME)
    assert back == manifest
    assert back.encode() == manifest.encode()
    assert back.files == manifest.files == {some_ref().file}


def test_it_is_plain_json() -> None:
    row = orjson.loads(made().encode())
    assert list(row)[:4] == ["format", "checksum", "tick", "epoch"]
    assert row["positions"]["clicks"] == {"0": 3, "11": 4}
    assert row["arrangements"]["a@1/agg.0"][0][:6] == [some_ref().file, 64, 640, 1, 0, 2**64 - 1]


def test_a_tick_with_nothing_comes_back() -> None:
    manifest = Manifest(1, 1, 0, 0, {})
    assert Manifest.decode(manifest.encode(), NAME) == manifest


def test_the_ids_of_a_tick_come_back_and_one_without_is_written_as_before() -> None:
    plain = made().encode()
    assert not {"id", "previous", "commit"} & set(orjson.loads(plain))
    named = made(id="a" * 16, previous="b" * 16, commit="c" * 16)
    assert Manifest.decode(named.encode(), NAME) == named
    assert str(named.token) == f"{named.tick}-{'a' * 16}"
    assert Manifest.decode(plain, NAME).token == Token(named.tick)


def test_the_next_manifest_shares_what_did_not_change() -> None:
    before = Manifest.decode(made().encode(), NAME)
    after = dataclasses.replace(before, tick=8, arrangements={**before.arrangements, "new": (some_ref(),)})
    assert after.arrangements["a@1/agg.0"] is before.arrangements["a@1/agg.0"]
    assert Manifest.decode(after.encode(), NAME) == after


def test_schemas_are_text() -> None:
    schema = pa.schema([pa.field("a", pa.list_(pa.int8()), nullable=False)], metadata={"k": "v"})
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)
    assert made().views["a"].arrow_schema == SCHEMA


@given(st.data())
def test_every_flipped_bit_is_noticed(data: st.DataObject) -> None:
    damaged = bytearray(made().encode())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    # A flip may make a format that is newer, and then this version is not to judge.
    with pytest.raises((CorruptionError, NewerVersionError)) as caught:
        Manifest.decode(bytes(damaged), NAME)
    assert caught.value.file == NAME


@pytest.mark.parametrize("at", range(40, 43))
def test_a_flipped_bit_behind_the_checksum_is_noticed(at: int) -> None:
    damaged = bytearray(made().encode())
    damaged[at] ^= 1
    with raises(CorruptionError, file=NAME, offset=0):
        Manifest.decode(bytes(damaged), NAME)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"format":1}', b'{"format":1,"checksum":"'])
def test_other_contents_are_damage(data: bytes) -> None:
    with raises(CorruptionError, file=NAME, offset=0):
        Manifest.decode(data, NAME)


def test_a_newer_format_is_said_to_be_newer() -> None:
    newer = FORMAT + 1
    with raises(NewerVersionError, file=NAME, found=newer, supported=FORMAT):
        Manifest.decode(b'{"format": %d, "whatever": []}' % newer, NAME)


def test_the_format_before_is_read() -> None:
    """There a run has ten parts, and a stream of its own; nothing else has changed."""
    older = made().encode().replace(b'"format":2', b'"format":1', 1)
    assert Manifest.decode(older, NAME) == made()


def test_a_large_manifest_is_cheap() -> None:
    """30 views with 5 arrangements of 10 runs; generous, because machines are busy."""

    def ref(view: int, arrangement: int, run: int) -> RunRef:
        return some_ref(10, f"{view * 100 + run:012d}-3-0123456789ab.runs", 64 * (arrangement + 1))

    arrangements = {
        f"view_{v}@1/agg.{a}": tuple(ref(v, a, r) for r in range(10)) for v in range(30) for a in range(5)
    }
    views = {
        f"view_{v}": ViewState(f"view_{v}", 1, "live", f"view_{v}@1/agg.0", TEXT, change=ref(v, 9, 9))
        for v in range(30)
    }
    manifest = made(arrangements=arrangements, views=views)
    data = manifest.encode()
    assert median_ms(manifest.encode) < 10
    assert median_ms(lambda: Manifest.decode(data, NAME)) < 10


def median_ms(act: Any) -> float:
    took = []
    for _ in range(9):
        start = time.process_time()
        act()
        took.append(time.process_time() - start)
    return statistics.median(took) * 1e3
