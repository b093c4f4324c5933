"""Records found by a condition: what is found is what Spark would find, and what only Spark could is refused at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.serving import find_records
from headwater.serving.find_records import found
from tests.raising import raises
from tests.repo.tree import ROOT


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os") as made:
        made.sql(
            "CREATE TOPIC t (k BIGINT, v STRING, at TIMESTAMP, tags MAP<STRING, STRING>) WITH (partitions = 2, partition_by = 'k')"
        )
        for n in range(0, 40, 10):
            made.topic("t").append([{"k": k, "v": f"v{k % 3}" if k % 5 else None} for k in range(n, n + 10)])
        yield made


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("k = 7", {7}),
        ("k IN (7, 8) OR v IS NULL AND k > 30", {7, 8, 35}),
        ("v LIKE '%2' AND k % 2 = 0 -- of all", {2, 8, 14, 26, 32, 38}),
        ("NOT (k < 38)", {38, 39}),
        ("K = 7 AND `k` = 7 AND t.k = 7", {7}),
        ("v = 'none of them'", set[int]()),
    ],
)
@pytest.mark.parametrize("at_once", [3, 500_000])
def test_the_records_that_are_meant_are_found(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch, where: str, keys: set[int], at_once: int
) -> None:
    monkeypatch.setattr(find_records, "ROWS_AT_ONCE", at_once)
    offsets = found(ws.log, ws.log.topic("t"), where)
    read = [
        row["k"]
        for partition, mine in offsets.items()
        for batch in ws.log.read("t", partition, 0, 100, ["k", "_offset"])
        for row in batch.to_pylist()
        if row["_offset"] in mine
    ]
    assert sorted(read) == sorted(keys)
    assert all(mine == sorted(set(mine)) and mine for mine in offsets.values())


def test_records_are_found_by_where_they_lie(ws: hw.Workspace) -> None:
    assert found(ws.log, ws.log.topic("t"), "_partition = 1 AND _offset IN (0, 2)") == {1: [0, 2]}


def test_tombstones_are_found_too(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC u (k BIGINT, v BIGINT NOT NULL, PRIMARY KEY (k))")
    ws.topic("u").append([{"k": 1, "v": 2}, {"k": 2, "v": 2}])
    ws.topic("u").delete([{"k": 1}])
    assert found(ws.log, ws.log.topic("u"), "_op = 'delete'") == {0: [2]}
    assert found(ws.log, ws.log.topic("u"), "v IS NULL AND k = 1") == {0: [2]}
    assert found(ws.log, ws.log.topic("u"), "v = 2") == {0: [0, 1]}


@pytest.mark.parametrize(
    ("where", "facts", "underlined"),
    [
        ("kk = 7", {"reason": "unknown-column", "topic": "t", "name": "kk"}, "kk"),
        ("k = 7 AND nope", {"reason": "unknown-column", "topic": "t", "name": "nope"}, "nope"),
        ("k = ", {"reason": "not-a-condition"}, "k ="),
        ("k = 7) OR (k = 8", {"reason": "not-one-condition"}, ")"),
        ("k = 7; DROP TOPIC t", {"reason": "not-one-condition"}, ";"),
        ("k = (SELECT max(k) FROM t)", {"reason": "subquery"}, "SELECT"),
        ("regexp_count(v, 'a') = 1", {"reason": "needs-spark"}, "regexp_count"),
        ("v RLIKE 'a.*'", {"reason": "needs-spark"}, "v RLIKE 'a.*'"),
        ("tags['a'] = 'b'", {"reason": "needs-spark"}, "tags['a'] = 'b'"),
        ("k", {"reason": "needs-spark"}, "k"),
    ],
)
def test_what_cannot_be_asked_is_underlined(
    ws: hw.Workspace, where: str, facts: dict[str, str], underlined: str
) -> None:
    with raises(hw.StatementError, **facts) as refused:
        found(ws.log, ws.log.topic("t"), where)
    error = refused.value
    assert error.hint
    _, line, marks = str(error.detail).split("\n")
    start = marks.index("^")
    assert line[start : start + marks.count("^")].strip() == underlined


def test_a_condition_that_fails_on_a_record_says_so(ws: hw.Workspace) -> None:
    with raises(hw.StatementError, reason="condition-failed", topic="t"):
        found(ws.log, ws.log.topic("t"), "1 / (k - 5) > 0")


SCRIPT = """
import sys
import headwater as hw

def refused(act):
    try:
        act()
    except hw.HeadwaterError:
        return
    raise AssertionError("it was not refused")

with hw.open(sys.argv[1], durability="os") as ws:
    ws.sql("CREATE TOPIC t (k BIGINT NOT NULL, v STRING PRIVATE BY (k))")
    ws.topic("t").append([{"k": k, "v": str(k)} for k in range(9)])
    assert ws.excise("t", "k IN (1, 2)").records == 2
    assert ws.excise("t", "v = '3'").records == 1
    assert ws.forget(4).records == 1
    refused(lambda: ws.excise("t", "regexp_count(v, 'a') = 1"))
    refused(lambda: ws.excise("t", "nope = 1"))
    refused(lambda: ws.excise("t", "k = "))
    refused(lambda: ws.excise("t", "1 / (k - 5) > 0"))
    refused(lambda: ws.excise("nope", "k = 1"))
    refused(lambda: ws.forget(99))
    refused(lambda: ws.forget(1.5))
    ws.rotate_keys()
    assert len(ws.deletions()) == 3
with hw.open(sys.argv[2], create=False) as ws:  # with views, and deletions from before
    known = len(ws.deletions())
    assert ws.excise("visits", "_partition = 0 AND _offset = 10").records == 1
    assert ws.forget(1).records
    refused(lambda: ws.excise("visits", "md5('x') = 'y'"))
    assert [p.status for p in ws.deletions()[known].places if p.kind == "view"]
assert "pyspark" not in sys.modules and "py4j" not in sys.modules
"""


def test_no_deletion_loads_spark(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "private-1", tmp_path / "golden")
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "w"), str(tmp_path / "golden" / "workspace")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
