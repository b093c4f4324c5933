"""A folder that was copied, and one that two machines write: what is detected, and what each of them keeps."""

import shutil
from pathlib import Path

import pytest

from headwater.core.errors import FencedError
from headwater.log.embedded import EmbeddedLog
from headwater.testing import FaultyStorage
from tests.crash.script import ORDERS, SETTINGS, append, numbers, problems
from tests.raising import raises


def opened(folder: Path, machine: str) -> EmbeddedLog:
    return EmbeddedLog.open(folder, settings=SETTINGS, storage=FaultyStorage(folder, boot=machine))


def orders(log: EmbeddedLog) -> list[int]:
    end = log.partitions("orders")[0].end
    return [n for batch in log.read("orders", 0, 0, end, ["n"]) for n in batch.column("n").to_pylist()]


def test_a_machine_stops_when_another_one_has_opened_its_workspace(tmp_path: Path) -> None:
    one = opened(tmp_path / "ws", "one")
    one.create_topic(ORDERS)
    append(one, {"orders": numbers(0, 3)})
    two = opened(tmp_path / "ws", "two")
    append(two, {"orders": numbers(10, 2)})
    for attempt in range(2):
        with raises(FencedError, reason="other-machine"):
            append(one, {"orders": numbers(20 + attempt, 1)})
    with raises(FencedError, reason="other-machine"):
        orders(one)
    with raises(FencedError, reason="other-machine"):
        one.maintain(force=True)
    append(two, {"orders": numbers(12, 1)})
    assert orders(two) == [0, 1, 2, 10, 11, 12], "what was refused is there"
    assert problems(two) == []
    again = opened(tmp_path / "ws", "one")
    assert orders(again) == [0, 1, 2, 10, 11, 12]
    with pytest.raises(FencedError):
        append(two, {"orders": numbers(30, 1)})
    for log in (one, two, again):
        log.close()


def test_copies_of_a_workspace_go_their_own_ways(tmp_path: Path) -> None:
    """Both have the identity of the workspace and the records from before; what each of them appends is its own."""
    one = opened(tmp_path / "ws", "one")
    one.create_topic(ORDERS)
    append(one, {"orders": numbers(0, 3)})
    shutil.copytree(tmp_path / "ws", tmp_path / "copy")
    two = opened(tmp_path / "copy", "two")
    assert append(one, {"orders": numbers(10, 2)}).positions == {"orders": {0: (3, 5)}}
    assert append(two, {"orders": numbers(20, 2)}).positions == {"orders": {0: (3, 5)}}
    assert orders(one) == [0, 1, 2, 10, 11]
    assert orders(two) == [0, 1, 2, 20, 21]
    assert one.identity == two.identity
    assert problems(one) == problems(two) == []
    one.close()
    two.close()
