"""Groups computed again from what there is to read, where an operator keeps too little of them to take a row back.

    output after = output before - what the touched groups gave + what they give over their rows as these are now

A minimum, a sketch, a session's sum or the state of a fold does not say what it would be without a row. So where a deletion takes rows
away, their groups are made from nothing: the rows of these groups are looked for in the log, as it now reads, and stepped over as if
they had just come, while all others get their change as ever. Groups are told apart by the hash of their key, and whatever shares one
is computed again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headwater.hashing import Hashes, Mask
from headwater.operators.delta import Delta, concat, consolidate
from headwater.operators.runs import Key, Run, among, contents_latest, key_hashes
from headwater.queries import graph as g
from headwater.runtime.compaction import merged_run
from headwater.runtime.linear import renamed
from headwater.runtime.pipeline import Operator, Pipeline, Runs, Slot, source_change
from headwater.runtime.units import keeps_little

Whole = Callable[[g.Source], Iterator[Delta]]
"""All rows of a source after the tick, in the order of the log, in pieces."""

_RUNS_MAX = 8
"""So many runs of what is computed again are looked into, before they are merged."""


def can_be_recomputed(node: g.Node) -> bool:
    """Whether the rows that such an operator has read can be had again: single rows of topics and of views that it reads."""
    return all(isinstance(each, g.Source | g.Constant | g.Map | g.Union) for each in list(g.walk(node))[:-1])


class Recomputing:
    """Computes the groups again that rows go from. `whole` has the sources of a pipeline as they are after the tick."""

    def __init__(self, pipeline: Pipeline, whole: Whole) -> None:
        self._operators = {id(node): operator for node, operator in pipeline.nodes}
        self._whole = whole

    def applies(self, node: g.Node, given: Sequence[Delta]) -> bool:
        """Whether an operator has to: rows go, and it does not know what that changes."""
        return keeps_little(node) and any((delta.weights < 0).any() for delta in given)

    def step(
        self, node: g.Node, operator: Operator, given: Delta, state: Sequence[Runs]
    ) -> tuple[Delta, Sequence[Run]]:
        """The change of its output, and a run to add to each slot, as the operator's own step would give them."""
        key = _key(node)
        hashes = key_hashes(given.rows, key)
        touched = np.unique(hashes[given.weights < 0])
        rest = given.filter(~_is_in(hashes, touched))
        output, added = operator.step([rest], state) if len(rest) else (Delta.empty(node.schema), None)
        held = [[among(run, touched) for run in runs] for runs in state]
        made, new = self._made(node, operator, key, touched)
        shown = concat([output, _shown(node, operator, held).negated(), made], node.schema)
        runs = [
            _replacing(slot, held[i], new[i], None if added is None else added[i])
            for i, slot in enumerate(operator.slots)
        ]
        return consolidate(Delta(shown.rows, shown.weights)), runs

    def _made(
        self, node: g.Node, operator: Operator, key: Key, touched: Hashes
    ) -> tuple[Delta, list[list[Run]]]:
        """What groups give over their rows as these are now, and the runs that hold them."""
        output: list[Delta] = []
        if (nothing := operator.initial()) is not None:
            output.append(nothing)
        runs: list[list[Run]] = [[] for _ in operator.slots]
        for piece in self._rows(node.inputs[0]):
            mine = piece.filter(_is_in(key_hashes(piece.rows, key), touched))
            if not len(mine):
                continue
            change, added = operator.step([mine], runs)
            output.append(change.renamed(renamed(change.rows, node.schema)))
            for i, run in enumerate(added):
                runs[i] = [*runs[i], run] if len(run) else runs[i]
                if len(runs[i]) > _RUNS_MAX:
                    runs[i] = [merged_run(operator.slots[i], runs[i], bottom=True)]
        return consolidate(concat(output, node.schema)), runs

    def _rows(self, node: g.Node) -> Iterator[Delta]:
        """All rows of a node that changes single rows alone, in pieces."""
        match node:
            case g.Source():
                yield from (source_change(node, piece) for piece in self._whole(node))
            case g.Constant():
                yield Delta.of(node.rows)
            case _:
                operator = self._operators[id(node)]
                for below in node.inputs:
                    for piece in self._rows(below):
                        if len(piece):
                            change, _ = operator.step([piece], ())
                            yield change.renamed(renamed(change.rows, node.schema))


def _key(node: g.Node) -> Key:
    """The columns of the input that tell groups apart."""
    match node:
        case g.SessionAggregate():
            return tuple(i for i in range(node.keys) if i != node.column)
        case g.Aggregate():
            return tuple(range(node.keys))
        case g.Fold():
            return node.key
    raise AssertionError(f"{node} keeps no groups")


def _shown(node: g.Node, operator: Operator, held: Sequence[Runs]) -> Delta:
    """What an operator has given for the groups that it holds."""
    if isinstance(node, g.Fold):
        return contents_latest(held[0], node.schema, range(len(node.key)))
    shown = operator.shown(held)
    return shown.renamed(renamed(shown.rows, node.schema))


def _replacing(slot: Slot, held: Runs, new: Sequence[Run], added: Run | None) -> Run:
    """A run that puts new rows in the place of those that are held, and adds to others."""
    if slot.discipline == "latest":
        gone = [Run(run.hashes, run.rows, np.zeros_like(run.weights)) for run in held]
    else:
        gone = [Run(run.hashes, run.rows, -run.weights) for run in held]
    parts = [*gone, *new, *([] if added is None else [added])]
    return merged_run(slot, parts or [_no_run(slot.schema)], bottom=False)


def _no_run(schema: pa.Schema) -> Run:
    nothing = Delta.empty(schema)
    return Run(np.zeros(0, np.uint64), nothing.rows, nothing.weights)


def _is_in(hashes: Hashes, some: Hashes) -> Mask:
    """Which of the hashes are among some, which ascend."""
    if not len(some):
        return np.zeros(len(hashes), np.bool_)
    found: Mask = some[np.minimum(np.searchsorted(some, hashes), len(some) - 1)] == hashes
    return found
