"""The cuts of all ticks: what was recorded is found again, torn ends are written anew, damage is told."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import CorruptionError
from headwater.core.storage import Storage
from headwater.state import cut_history as module
from headwater.state.cut_history import Cuts, TickCut
from headwater.testing import FaultyStorage
from tests.raising import raises

ENDS = st.dictionaries(
    st.sampled_from(["a", "b", "topic with ünïcode"]),
    st.dictionaries(st.integers(0, 3), st.integers(0, 2**60), max_size=3),
    max_size=3,
)


def some(count: int, start: int = 1) -> list[TickCut]:
    return [TickCut(n, 1_000 * n, 3 * n, {"a": {0: n, 1: 7}}) for n in range(start, start + count)]


@pytest.fixture(autouse=True)
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINES_MAX", 4)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 100), ENDS), max_size=14))
def test_every_cut_comes_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, Any]]
) -> None:
    storage = Storage(tmp_path_factory.mktemp("cuts"))
    writer, reader = Cuts(storage), Cuts(storage)
    made: list[TickCut] = []
    for skip, later, positions in steps:
        before = made[-1] if made else TickCut(0, 50, 0, {})
        identity = "" if later % 3 == 0 else f"{later:016x}"  # ticks of earlier versions have none
        at = before.committed_at + later
        made.append(TickCut(before.tick + skip, at, before.sequence + skip, positions, id=identity))
        writer.extend(made[-1:])
        assert reader.of(made[-1].tick) == made[-1]
        assert reader.last_tick() == made[-1].tick
    for cuts in (writer, reader, Cuts(storage)):
        assert [cuts.of(cut.tick) for cut in made] == made
        for moment in {cut.committed_at + step for cut in made for step in (-1, 0, 1)}:
            upto = [cut.tick for cut in made if cut.committed_at <= moment]
            assert cuts.at(moment) == (upto[-1] if upto else None)


def test_nothing_recorded_is_nothing(tmp_path: Path) -> None:
    cuts = Cuts(Storage(tmp_path))
    cuts.sync()
    assert (cuts.of(1), cuts.at(5), cuts.last_tick()) == (None, None, None)


def test_a_line_says_what_changed_and_no_more(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    Cuts(storage).extend(some(2))
    text = storage.read("state/cuts/000000000001.cuts").decode()
    assert [line[17:] for line in text.splitlines()] == [
        '[1,1000,3,{"a":{"0":1,"1":7}}]',
        '[2,1000,3,{"a":{"0":1}}]',
    ]


@pytest.mark.parametrize("tail", [b"x", b"0123456789abcdef [9,9,9,{}]\n", bytes(600), b"\n\n"])
def test_a_torn_end_is_left_behind(tmp_path: Path, tail: bytes) -> None:
    storage = Storage(tmp_path)
    Cuts(storage).extend(some(2))
    name = "state/cuts/000000000001.cuts"
    file = storage.open(name)
    file.write_at(file.size(), tail)
    file.close()
    cuts = Cuts(storage)
    assert cuts.last_tick() == 2
    cuts.extend(some(4, start=3))
    for reader in (cuts, Cuts(storage)):
        assert [reader.of(n) for n in range(1, 7)] == some(6)
        assert reader.at(3_500) == 3


def test_a_file_without_a_good_line_is_begun_anew(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    Cuts(storage).extend(some(4))
    storage.write_atomic("state/cuts/000000000005.cuts", b"garbage, longer than a line would be" * 9)
    cuts = Cuts(storage)
    assert (cuts.last_tick(), cuts.at(10**9), cuts.of(5)) == (4, 4, None)
    cuts.extend(some(2, start=5))
    assert [Cuts(storage).of(n) for n in range(1, 7)] == some(6)


def test_two_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    one, two = Cuts(storage), Cuts(storage)
    one.extend(some(1))
    two.extend(some(1, start=2))
    one.extend(some(1, start=3))
    assert [Cuts(storage).of(n) for n in range(1, 4)] == some(3)


def test_damage_in_the_middle_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    Cuts(storage).extend(some(12))
    storage.flip("state/cuts/000000000005.cuts", 60)
    cuts = Cuts(storage)
    readable = [n for n in range(1, 13) if n not in (6, 7, 8)]
    assert [cuts.of(n) for n in readable] == [some(12)[n - 1] for n in readable]
    with raises(CorruptionError, file="state/cuts/000000000005.cuts", tick=7):
        cuts.of(7)
    storage.flip("state/cuts/000000000005.cuts", 3)
    assert Cuts(storage).at(2_500) == 2
    assert Cuts(storage).at(11_500) == 11
