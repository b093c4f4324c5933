"""Recomputation of groups from the sources, for operators whose state is insufficient to retract a row.

    output after = output before - old output of the affected groups + their output over the rows as they are now

A minimum, a sketch, a session's sum or the state of a fold does not determine the value without a row. So when a
deletion removes rows, their groups are computed from scratch: the rows of these groups are read from the log, as it is
now, and are processed as if they were new, while all other groups get their regular change. Groups are identified by
the hash of their key; groups that share a hash are recomputed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.dataflow_stages import source_change
from headwater.engine.dataflow.linear import compile_map, renamed
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.engine.dataflow.output_keys import operator_shown
from headwater.engine.deletion.private_dataflow import (
    columns_from_private,
    is_linear,
    readers,
    shown_by,
    unfiltered,
)
from headwater.engine.deletion.source_scan import SourceScan
from headwater.engine.merging.run_compaction import merged_run
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.operators.zset.runs import (
    Key,
    Run,
    among,
    arrange,
    contents,
    is_among,
    key_hashes,
)

_RUNS_MAX = 8
"""Maximum number of runs of recomputed state, before they are merged."""


class GroupRecomputation:
    """Recomputes the groups from which rows are removed, and those of rows whose private values were destroyed."""

    def __init__(self, pipeline: Dataflow, sources: SourceScan) -> None:
        self._operators = {id(node): operator for node, operator in pipeline.nodes}
        self._evaluator = pipeline.evaluator
        self._root = pipeline.root
        self._sources = sources
        self._readers = {id(node) for node in readers(pipeline.root, sources.forgotten) or ()}
        self._expiring = {
            id(node) for node, operator in pipeline.nodes if any(slot.expires for slot in operator.slots)
        }
        self._recomputed_keys: Hashes | None = None
        """Hashes of the keys for which the view must show only recomputed rows; None if there are none."""
        self._unfiltered: dict[int, Callable[[Delta], Delta]] = {}

    def applies(self, node: g.Node, given: Sequence[Delta]) -> bool:
        """Whether an operator must recompute groups: rows are removed, and its state does not determine the effect."""
        if id(node) in self._readers:
            return not kind_of(node).is_linear
        if kind_of(node).retraction(node) != "groups" and id(node) not in self._expiring:
            return False
        return any((delta.weights < 0).any() for delta in given)

    def step(
        self, node: g.Node, operator: Operator, given: Sequence[Delta], state: Sequence[Runs]
    ) -> tuple[Delta, Sequence[Run]]:
        """Return the change of the output, and a run to add to each arrangement, like the operator's own step."""
        if id(node) in self._expiring:
            return self._of_expiring(node, operator, given, state)
        if kind_of(node).keeps_output:
            return self._of_groups(node, operator, given[0], state)
        return self._of_rows(node, operator, given, state)

    def instead(self, change: Run, runs: Runs, key: Key) -> Run:
        """Return the change of a view's contents by a key, given the change of its output rows and the runs of its contents.

        The change replaces rows that the dataflow does not retract: those of a view of single rows, and those that were
        computed from state which has expired since.
        """
        if self._recomputed_keys is not None:
            return arrange(self._without(self._root, Delta(change.rows, change.weights), runs), key)
        if id(self._root) not in self._readers or not kind_of(self._root).is_linear:
            return change
        shown = shown_by(self._root, self._sources.forgotten)
        given = Delta(renamed(change.rows, self._root.schema), change.weights)
        held = contents(runs, self._root.schema)
        found = self._replaced(
            self._root,
            shown,
            given,
            lambda touched: held.filter(is_among(key_hashes(held.rows, shown), touched)),
        )
        return arrange(found, key)

    def _of_groups(
        self, node: g.Node, operator: Operator, given: Delta, state: Sequence[Runs]
    ) -> tuple[Delta, Sequence[Run]]:
        """Run a step of an operator whose state consists of its groups."""
        (below,), (key,) = node.inputs, kind_of(node).lookup_keys(node) or ()
        touched = self._touched(below, key, given)
        rest = given.filter(~is_among(key_hashes(given.rows, key), touched))
        output, added = operator.step([rest], state) if len(rest) else (Delta.empty(node.schema), None)
        held = [[among(run, touched) for run in runs] for runs in state]
        made, new = self._made(node, operator, key, touched)
        shown = concat([output, _shown(node, operator, held).negated(), made], node.schema)
        runs = [
            _replacing(slot, held[i], new[i], None if added is None else added[i])
            for i, slot in enumerate(operator.slots)
        ]
        return consolidate(Delta(shown.rows, shown.weights)), runs

    def waiting(self, node: g.Node, given: Delta, runs: Runs) -> Delta:
        """Return a change of the rows that wait until they are final, given the runs of the waiting rows."""
        return given if self._recomputed_keys is None else self._without(node.inputs[0], given, runs)

    def _without(self, node: g.Node, given: Delta, runs: Runs) -> Delta:
        """Return a change of a node's rows that also retracts all of its rows whose keys are recomputed; `runs` has
        these rows."""
        found = operator_shown(node)
        assert found is not None
        assert self._recomputed_keys is not None
        rows = contents(runs, given.rows.schema)
        gone = rows.filter(is_among(key_hashes(rows.rows, found[1]), self._recomputed_keys))
        return consolidate(concat([given, gone.negated()], given.rows.schema))

    def _of_expiring(
        self, node: g.Node, operator: Operator, given: Sequence[Delta], state: Sequence[Runs]
    ) -> tuple[Delta, Sequence[Run]]:
        """Run a step of an operator whose state may have expired since it computed some of the output.

        The step emits all current rows of the affected keys. Their previous rows are retracted in the relation that stores
        them (see `instead` and `waiting`).
        """
        keys = kind_of(node).lookup_keys(node)
        assert keys is not None
        each = list(zip(node.inputs, keys, given, strict=True))
        touched = np.unique(np.concatenate([self._touched(*one) for one in each]))
        rest = [rows.filter(~is_among(key_hashes(rows.rows, key), touched)) for _, key, rows in each]
        now = [concat(list(self._rows(below, key, touched)), below.schema) for below, key, _ in each]
        parts: list[tuple[Delta, Sequence[Run]]] = []
        if any(map(len, rest)):
            parts.append(operator.step(rest, state))
        if any(map(len, now)):
            parts.append(operator.step(now, [()] * len(state)))
        self._recomputed_keys = touched
        shown = [output.renamed(renamed(output.rows, node.schema)) for output, _ in parts]
        held = [[among(run, touched) for run in runs] for runs in state]
        runs = [
            _replacing(slot, held[i], [added[i] for _, added in parts], None)
            for i, slot in enumerate(operator.slots)
        ]
        return consolidate(concat(shown, node.schema)), runs

    def _of_rows(
        self, node: g.Node, operator: Operator, given: Sequence[Delta], state: Sequence[Runs]
    ) -> tuple[Delta, Sequence[Run]]:
        """Run a step of an operator whose state is the rows of each input by key: the stored rows of affected keys are
        retracted."""
        keys = kind_of(node).lookup_keys(node)
        assert keys is not None
        changes = []
        for place, below in enumerate(node.inputs):
            if not is_linear(below) or not any(map(self._sources.forgotten, g.sources(below))):
                changes.append(given[place])
                continue
            slot, runs = operator.slots[place], state[place]

            def held(
                touched: Hashes, slot: ArrangementSpec = slot, runs: Runs = runs, below: g.Node = below
            ) -> Delta:
                parts = [among(run, touched) for run in runs]
                if not parts:
                    return Delta.empty(below.schema)
                whole = merged_run(slot, parts, bottom=True)
                return Delta(renamed(whole.rows, below.schema), whole.weights)

            changes.append(self._replaced(below, keys[place], given[place], held))
        if not any(map(len, changes)):
            return Delta.empty(node.schema), [_no_run(slot.schema) for slot in operator.slots]
        return operator.step(changes, state)

    def _replaced(self, node: g.Node, key: Key, given: Delta, held: Callable[[Hashes], Delta]) -> Delta:
        """Return a change of a node's rows in which the stored rows of affected keys are replaced by their current rows."""
        touched = self._touched(node, key, given)
        rest = given.filter(~is_among(key_hashes(given.rows, key), touched))
        now = self._rows(node, key, touched)
        return consolidate(concat([rest, held(touched).negated(), *now], node.schema))

    def _touched(self, node: g.Node, key: Key, given: Delta) -> Hashes:
        """Return the hashes of the keys of rows that are removed, or whose private values were destroyed."""
        found = [key_hashes(given.rows, key)[given.weights < 0]]
        for source, path in _paths(node):
            if isinstance(source, g.SourceNode) and self._sources.forgotten(source):
                for rows in self._sources.of_forgotten(source):
                    through = self._through(path, source_change(source, rows), filtered=False)
                    found.append(key_hashes(through.rows, key))
        return np.unique(np.concatenate(found))

    def _made(
        self, node: g.Node, operator: Operator, key: Key, touched: Hashes
    ) -> tuple[Delta, list[list[Run]]]:
        """Return the output of groups over their current rows, and the runs of their state."""
        output: list[Delta] = []
        runs: list[list[Run]] = [[] for _ in operator.slots]
        for mine in self._rows(node.inputs[0], key, touched):
            change, added = (operator.step if output else operator.begin)([mine], runs)
            output.append(change.renamed(renamed(change.rows, node.schema)))
            for i, run in enumerate(added):
                runs[i] = [*runs[i], run] if len(run) else runs[i]
                if len(runs[i]) > _RUNS_MAX:
                    runs[i] = [merged_run(operator.slots[i], runs[i], bottom=True)]
        if not output and (nothing := operator.initial()) is not None:
            output.append(nothing)
        return consolidate(concat(output, node.schema)), runs

    def _rows(self, node: g.Node, key: Key, touched: Hashes) -> Iterator[Delta]:
        """Yield the rows of a linear node whose keys have these hashes, in pieces that are not empty."""
        if not len(touched):
            return
        hidden = columns_from_private(node, self._sources.private)
        is_plain = hidden is not None and hidden.isdisjoint(key)
        for source, path in _paths(node):
            if isinstance(source, g.Constant):
                pieces: Iterator[Delta] = iter([Delta.of(source.rows)])
            elif is_plain and self._sources.can_be_plain(source):
                pieces = self._candidates(source, path, key, touched)
            else:
                pieces = (source_change(source, rows) for rows in self._sources.whole(source))
            for piece in pieces:
                rows = self._through(path, piece)
                mine = rows.filter(is_among(key_hashes(rows.rows, key), touched))
                if len(mine):
                    yield mine

    def _candidates(
        self, source: g.SourceNode, path: Sequence[g.Node], key: Key, touched: Hashes
    ) -> Iterator[Delta]:
        """Yield the rows of a source that reach these keys; they are found without their private values, and then read
        completely."""
        for piece in self._sources.plain(source):
            numbered = Delta(piece.rows.rows, np.arange(1, len(piece.rows) + 1, dtype=np.int64))
            rows = self._through(path, source_change(source, numbered), filtered=False)
            places = np.unique(rows.weights[is_among(key_hashes(rows.rows, key), touched)]) - 1
            if len(places):
                yield source_change(source, piece.at(places))

    def _through(self, path: Sequence[g.Node], rows: Delta, *, filtered: bool = True) -> Delta:
        """Return rows after some linear nodes; without `filtered`, filters that read private values are skipped."""
        for node in path:
            if not len(rows):
                return Delta.empty(path[-1].schema)
            if filtered or not isinstance(node, g.Map):
                rows, _ = self._operators[id(node)].step([rows], ())
            else:
                rows = self._without_filters(node)(rows)
            rows = rows.renamed(renamed(rows.rows, node.schema))
        return rows

    def _without_filters(self, node: g.Map) -> Callable[[Delta], Delta]:
        if id(node) not in self._unfiltered:
            self._unfiltered[id(node)] = compile_map(unfiltered(node, self._sources.private), self._evaluator)
        return self._unfiltered[id(node)]


def _paths(node: g.Node) -> Iterator[tuple[g.SourceNode | g.Constant, list[g.Node]]]:
    """Yield the sources of a linear node, each with the nodes that its rows pass; the last one is the node itself."""
    if isinstance(node, g.SourceNode | g.Constant):
        yield node, []
    for below in node.inputs:
        for source, path in _paths(below):
            yield source, [*path, node]


def _shown(node: g.Node, operator: Operator, held: Sequence[Runs]) -> Delta:
    """Return the output of an operator for the groups in its state."""
    shown = operator.shown(held)
    return shown.renamed(renamed(shown.rows, node.schema))


def _replacing(slot: ArrangementSpec, held: Runs, new: Sequence[Run], added: Run | None) -> Run:
    """Return a run that replaces the stored rows by new rows, and includes the rows of `added`."""
    if slot.discipline == "latest":
        gone = [Run(run.hashes, run.rows, np.zeros_like(run.weights)) for run in held]
    else:
        gone = [Run(run.hashes, run.rows, -run.weights) for run in held]
    parts = [*gone, *new, *([] if added is None else [added])]
    return merged_run(slot, parts or [_no_run(slot.schema)], bottom=False)


def _no_run(schema: pa.Schema) -> Run:
    nothing = Delta.empty(schema)
    return Run(np.zeros(0, np.uint64), nothing.rows, nothing.weights)
