"""Every format that was ever released opens, holds what it held, can be appended to and verifies."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.log.embedded.creation import FORMAT
from tests.golden.contents import contents
from tests.repo.tree import ROOT

GOLDEN = sorted((ROOT / "tests" / "golden").glob("format-*"))
EXPECTED = {home.name: json.loads((home / "expected.json").read_text(encoding="utf-8")) for home in GOLDEN}


@pytest.fixture(params=GOLDEN, ids=lambda home: home.name)
def home(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def golden(home: Path, tmp_path: Path) -> Iterator[hw.Workspace]:
    """A copy, opened an hour after it was made."""
    shutil.copytree(home / "workspace", tmp_path / "ws")
    clock = ManualClock(EXPECTED[home.name]["made_at_us"] + 3_600_000_000)
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        yield ws


def test_the_present_format_has_a_golden_workspace() -> None:
    assert f"format-{FORMAT}" in EXPECTED, "run scripts/make_golden.py"


def test_it_is_small(home: Path) -> None:
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) < 300_000


def test_it_shows_all_that_the_format_has(home: Path) -> None:
    there = {path.relative_to(home / "workspace").as_posix() for path in (home / "workspace").rglob("*")}
    endings = {".arrow", ".parquet", ".steps", ".json", ".log"}
    assert endings <= {Path(name).suffix for name in there}
    assert len([name for name in there if name.startswith("journal/")]) >= 2
    assert any(name.startswith("checkpoints/") for name in there)


def test_it_holds_what_it_held(golden: hw.Workspace, home: Path) -> None:
    expected = {key: value for key, value in EXPECTED[home.name].items() if key != "made_at_us"}
    found = json.loads(json.dumps(contents(golden)))
    for name, topic in expected["topics"].items():
        assert found["topics"][name] == topic, name
    assert found == expected


def test_its_partitions_were_heard_of_when_they_were_written_to(golden: hw.Workspace, home: Path) -> None:
    """Early workspaces did not say so: it is the time of the last segment, or of the checkpoint."""
    for topic in golden.topics():
        for info in topic.partitions().values():
            assert 0 < info.heard_at <= EXPECTED[home.name]["made_at_us"]
            if info.last_appended_at is not None:
                assert info.heard_at == info.last_appended_at
        assert topic.producer_watermarks() == {}


def test_every_checksum_holds(golden: hw.Workspace) -> None:
    assert golden.verify().ok


def test_it_can_be_appended_to_and_kept_up(golden: hw.Workspace) -> None:
    clicks = golden.topic("clicks")
    before = sum(info.rows for info in clicks.partitions().values())
    clicks.append([{"user": 1, "url": "/new", "at": datetime(2026, 1, 1, tzinfo=UTC)}])
    golden.topic("everything").append([{"i32": 1, "added": "after"}])
    golden.maintain()
    assert golden.verify().ok
    assert sum(batch.num_rows for batch in clicks.read()) == before + 1


def test_its_producers_are_remembered(golden: hw.Workspace) -> None:
    clicks = golden.topic("clicks")
    row = {"user": 1, "url": "/again", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    ends = {p: info.end for p, info in clicks.partitions().items()}
    receipt = clicks.append([row], producer="loader", sequence=10, epoch=2)
    assert receipt.rows == 6
    assert {p: info.end for p, info in clicks.partitions().items()} == ends
    with pytest.raises(hw.FencedError):
        clicks.append([row], producer="loader", sequence=11, epoch=1)


def test_its_versions_go_on(golden: hw.Workspace) -> None:
    accounts = golden.topic("accounts")
    with pytest.raises(hw.ConflictError):
        accounts.append([{"account": "a"}], expect={"a": 1})
    accounts.append([{"account": "a"}], expect={"a": 3})
