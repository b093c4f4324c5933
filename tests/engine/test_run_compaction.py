"""Merges of a tick: those of several arrangements done as one leave each of them as it would be alone."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headwater.core.clock import ManualClock
from headwater.core.errors import CorruptionError
from headwater.core.storage import Storage
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.merging import run_compaction
from headwater.engine.merging.run_compaction import Compacted, Compaction, Due, is_settled
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.ordered_runs import ColumnOrder
from headwater.operators.zset.runs import Run, arrange
from headwater.plan.time.state_expiry import Expiry
from headwater.state.store import StateStore
from headwater.state.writer import Writer

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
OTHER = pa.schema([("key", pa.int64()), ("n", pa.int64())])
MULTISET = ArrangementSpec("contents", "multiset", (0,), (), SCHEMA)
MAP = ArrangementSpec("0.0", "latest", (0,), (), SCHEMA)
SORTED = ArrangementSpec("1.0", "ordered", (0,), (ColumnOrder(1, False, False),), SCHEMA)
RENAMED = ArrangementSpec("contents", "multiset", (0,), (), OTHER)
FADING = ArrangementSpec("2.0", "latest", (0,), (), SCHEMA, Expiry(1, ("t",), 0))


def rows_of(slot: ArrangementSpec, keys: Sequence[int], numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(numbers)], schema=slot.schema)


def run_of(slot: ArrangementSpec, rng: random.Random, keys: Sequence[int]) -> Run:
    """Some rows by these keys: of a map each key once and some deleted, of a multiset some taken back."""
    numbers = [rng.randrange(3) for _ in keys]
    weights = [rng.choice([0, 1] if slot.discipline == "latest" else [-1, 1]) for _ in keys]
    return arranged(slot, keys, numbers, weights)


def arranged(
    slot: ArrangementSpec, keys: Sequence[int], numbers: Sequence[int], weights: Sequence[int]
) -> Run:
    run = arrange(Delta.of(rows_of(slot, keys, numbers)), (0,))
    if slot.discipline == "ordered":
        return run
    told = dict(zip(keys, weights, strict=True))
    return Run(run.hashes, run.rows, np.array([told[k] for k in run.rows.column(0).to_pylist()]))


class State:
    """A store with the runs that arrangements have, and those of others with the same keys."""

    def __init__(self, folder: Path) -> None:
        self.store = StateStore(Storage(folder), ManualClock())
        self.writer: Writer = self.store.begin(1, 1)

    def due(self, slot: ArrangementSpec, runs: list[Run], *, since: int = 1, level: int | None = None) -> Due:
        refs = tuple(self.writer.add(run, ticks=(t, t)) for t, run in enumerate(runs, since))
        for ref, run in zip(refs, runs, strict=True):
            self.store.remember(ref, run)
        return Due(slot, refs, runs, 0, level)

    def read_again(self, done: Compacted) -> list[Run]:
        """The runs, by a store that has nothing in memory."""
        self.writer.flush()
        return StateStore(self.store.storage, ManualClock()).open_all(done.refs)


def plain(runs: Sequence[Run]) -> list[tuple[list[int], list[int], list[tuple[int, int]]]]:
    return [
        (
            run.hashes.tolist(),
            run.weights.tolist(),
            list(zip(*(c.to_pylist() for c in run.rows.columns), strict=True)),
        )
        for run in runs
    ]


@pytest.mark.parametrize("seed", range(12))
def test_each_arrangement_is_as_it_would_be_alone(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    state = State(tmp_path)
    dues: list[Due] = []
    for number in range(rng.randint(2, 9)):
        slot = rng.choice([MULTISET, MAP, MAP, SORTED, RENAMED, FADING])
        keys = [rng.sample(range(12), rng.randint(1, 6)) for _ in range(rng.choice([8, 8, 9]))]
        runs = [run_of(slot, rng, some) for some in keys]
        if rng.random() < 0.3:  # a larger run below, which stays
            runs = [run_of(slot, rng, range(3_000)), *runs]
        dues.append(state.due(slot, runs, since=number % 3, level=rng.choice([None, 1])))
        if slot.discipline != "ordered" and rng.random() < 0.5:  # another of the same keys
            twins = [
                arranged(slot, run.rows.column(0).to_pylist(), [7] * len(run), [1] * len(run)) for run in runs
            ]
            dues.append(
                state.due(
                    slot,
                    [Run(r.hashes, t.rows, t.weights) for r, t in zip(runs, twins, strict=True)],
                    since=number,
                )
            )
    compacting = Compaction(state.writer, state.store)
    alone = [compacting.done(due) for due in dues]
    made = Compaction(state.writer, state.store).all_done(dues)
    for one, other in zip(made, alone, strict=True):
        assert plain(one.runs) == plain(other.runs)
        assert plain(state.read_again(one)) == plain(other.runs)
        assert [(ref.rows, ref.ticks) for ref in one.refs] == [(ref.rows, ref.ticks) for ref in other.refs]
        assert is_settled(one.refs)
        for ref in one.refs:
            state.store.verify(ref)


def eight(slot: ArrangementSpec, state: State, rows: int = 4) -> Due:
    keys = range(rows)
    return state.due(slot, [arranged(slot, keys, [t] * rows, [1] * rows) for t in range(8)])


def test_merges_of_one_kind_share_a_stream_and_the_others_have_their_own(tmp_path: Path) -> None:
    state = State(tmp_path)
    dues = [eight(slot, state) for slot in (MAP, MULTISET, MAP, RENAMED, MAP)]
    made = Compaction(state.writer, state.store).all_done(dues)
    assert [done.refs[0].shared for done in made] == [12, 0, 12, 0, 12]
    assert made[0].runs[0].hashes is made[2].runs[0].hashes


def test_a_stack_is_not_larger_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_compaction, "_STACK_ROWS_MAX", 8 * 4 * 2)
    state = State(tmp_path)
    made = Compaction(state.writer, state.store).all_done([eight(MAP, state) for _ in range(5)])
    assert [done.refs[0].shared for done in made] == [8, 8, 8, 8, 0]


def test_what_cancels_out_leaves_a_run_without_rows(tmp_path: Path) -> None:
    state = State(tmp_path)
    back_and_forth = [arranged(MULTISET, [1], [1], [1 if t % 2 else -1]) for t in range(8)]
    dues = [eight(MULTISET, state), state.due(MULTISET, back_and_forth)]
    made = Compaction(state.writer, state.store).all_done(dues)
    assert [[len(run) for run in done.runs] for done in made] == [[32], [0]]
    assert [len(state.read_again(done)[0]) for done in made] == [32, 0]


def test_damage_does_not_pass_into_what_several_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_compaction, "CHECK_BYTES_MAX", 1)
    state = State(tmp_path)
    dues = [eight(MAP, state), eight(MAP, state)]
    state.writer.flush()
    (file,) = state.writer.files
    with (tmp_path / "state" / "runs" / file).open("r+b") as opened:
        opened.seek(dues[1].refs[5].offset + dues[1].refs[5].length - 40)
        opened.write(b"\xff" * 8)
    with pytest.raises(CorruptionError):
        Compaction(state.store.begin(2, 1), state.store).all_done(dues)
