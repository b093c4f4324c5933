"""Private columns and their keys, of every format that was ever released: what could be read still can, what was forgotten still cannot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from tests.golden.contents import PRIVATE_VIEWS, contents, view_rows
from tests.repo.tree import ROOT

pytestmark = pytest.mark.slow

GOLDEN = sorted((ROOT / "tests" / "golden").glob("private-*"))
SETTINGS = LogSettings(maintenance_every_ms=0)

Open = Callable[..., hw.Workspace]


@pytest.fixture(params=GOLDEN, ids=lambda home: home.name)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the workspace and its keys, in another place."""
    shutil.copytree(request.param, tmp_path / "golden")
    return tmp_path / "golden"


@pytest.fixture
def expected(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "expected.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def open_ws(home: Path, expected: dict[str, Any]) -> Iterator[Open]:
    opened: list[hw.Workspace] = []
    clock = ManualClock(expected["made_at_us"] + 60_000_000)

    def again(**options: Any) -> hw.Workspace:
        for ws in opened:
            ws.close()
        opened.append(hw.open(home / "workspace", create=False, settings=SETTINGS, clock=clock, **options))
        return opened[-1]

    yield again
    opened[-1].close()


def test_there_is_one() -> None:
    assert GOLDEN, "run scripts/make_golden_private.py"


def test_it_is_small_and_has_nothing_in_plain(home: Path) -> None:
    files = [path for path in home.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    log = [path for path in (home / "workspace" / "topics").rglob("*") if path.is_file()]
    assert {".arrow", ".parquet"} <= {path.suffix for path in log}
    assert not any(b"private" in path.read_bytes() for path in log)


def test_it_reads_as_it_did(open_ws: Open, expected: dict[str, Any]) -> None:
    ws = open_ws()
    found = json.loads(json.dumps(contents(ws)))
    for name, topic in expected["topics"].items():
        assert found["topics"][name] == topic, name
    visits = [
        row
        for batch in ws.topic("visits").read(columns=["user", "s", "_forgotten"])
        for row in batch.to_pylist()
    ]
    of_one = [row for row in visits if row["user"] == 1]
    assert any(row["_forgotten"] and row["s"] is None for row in of_one), "from before the forgetting"
    assert any(not row["_forgotten"] and row["s"] is not None for row in of_one), "they came back"
    assert all(row["s"] is None for row in visits if row["user"] == 2)
    assert {(d.name, d.done) for d in ws.deletions()} == {
        ("forget-1", True),
        ("excise-1", True),
        ("forget-2", False),
    }


def test_its_keys_go_on(open_ws: Open, home: Path) -> None:
    ws = open_ws()
    with pytest.raises(hw.UsageError):
        ws.forget(2)
    ws.topic("visits").append([{"user": 2, "s": "private and new", "url": "/new"}])
    assert ws.rotate_keys() == 4
    ws.forget(3)
    ws = open_ws()
    read = {(r["user"], r["s"]) for b in ws.topic("visits").read() for r in b.to_pylist()}
    assert (2, "private and new") in read
    assert not any(user == 3 and text is not None for user, text in read)
    shutil.rmtree(home / "workspace.keys")
    with pytest.raises(hw.KeyStoreError):
        list(open_ws().topic("visits").read())


def test_what_was_begun_is_completed(open_ws: Open, spark: Any, expected: dict[str, Any]) -> None:
    ws = open_ws(spark=spark)
    ws.run()
    assert {name: view_rows(ws, name) for name in PRIVATE_VIEWS} == expected["views"]
    assert all(d.done for d in ws.deletions())
