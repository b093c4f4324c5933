"""A base is whole for as long as it counts, whatever engines before its own do when they move again."""

from pathlib import Path

import pytest

from headwater.core.storage import Storage
from headwater.state.base_ticks import BASE_RUNS, Bases
from tests.state.ticks import Engine


def files(storage: Storage) -> set[str]:
    return set(storage.list(BASE_RUNS)) if storage.exists(BASE_RUNS) else set()


def test_a_base_takes_the_place_of_the_one_before_it(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    engine, bases = Engine(storage), Bases(storage)
    first = engine.tick({1: 1})
    bases.make(first)
    second = engine.tick({2: 1}, arrangements={})
    bases.make(second)
    assert bases.newest() == second
    assert files(storage) == second.files
    assert not first.files & second.files


@pytest.mark.parametrize("linked", ["its runs alone", "all of it"])
def test_an_engine_that_did_not_move_leaves_the_next_base_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: str
) -> None:
    """It is stopped where it removes older bases, another engine takes over and makes the next one."""
    storage = Storage(tmp_path)
    old = Engine(storage)
    base = old.tick({1: 1})
    new = Engine(storage, epoch=2)
    made = []
    inner = Bases._remove_older

    def stopped(self: Bases, newest: object) -> None:
        if not made:
            made.append(new.tick({2: 1}))
            if linked == "all of it":
                Bases(storage).make(made[0])
            else:
                for file in made[0].files - files(storage):
                    storage.link(f"state/runs/{file}", f"{BASE_RUNS}/{file}")
        inner(self, newest)  # type: ignore[arg-type]

    monkeypatch.setattr(Bases, "_remove_older", stopped)
    Bases(storage).make(base)
    assert made[0].files <= files(storage)
    Bases(storage).make(made[0])
    assert Bases(storage).newest() == made[0]
