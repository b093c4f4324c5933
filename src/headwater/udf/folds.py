"""Folds: views of every key's current state, computed by a user-defined step over a topic's records in order.

A fold is a view whose query is `FOLD topic BY key, ... WITH name`, where `name` is the function that declares the step.
`FoldStep` advances states by the records of a tick; `recomputed` computes the same in batch, independently.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import SchemaError, UsageError
from headwater.core.types import format_type, quote
from headwater.core.values import UNFIT, array_of
from headwater.operators import graph as g
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import KeyGroups
from headwater.udf.udf_calls import Code, Misfit, complete, failure, plain
from headwater.udf.udf_definitions import FunctionDefinition
from headwater.udf.udf_registry import Functions

_FOLD = re.compile(r"^FOLD (?P<topic>\S+) BY (?P<key>.+) WITH (?P<name>\w+)\Z")
_EXACT: dict[pa.DataType, type] = {
    pa.int64(): int,
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.date32(): datetime.date,
}
"""Types whose Python values are kept unchanged; any other value is converted through Arrow after every step."""


@dataclass(frozen=True)
class FoldDefinition:
    """The definition of a fold: the topic, the key, and the name of the function."""

    topic: str
    key: tuple[str, ...]
    name: str

    @property
    def text(self) -> str:
        """Query text of the fold's view."""
        return f"FOLD {quote(self.topic)} BY {', '.join(map(quote, self.key))} WITH {self.name}"


def parse_fold(query: str) -> FoldDefinition | None:
    """Parse a view's query as a fold; None if the query is something else."""
    found = _FOLD.match(query)
    if found is None:
        return None
    key = tuple(part.strip().strip("`") for part in found["key"].split(","))
    return FoldDefinition(found["topic"].strip("`"), key, found["name"])


Events = Any
"""Records of a key in the form that the step takes: a list of dictionaries, or a batch."""


@dataclass(frozen=True)
class FoldCode:
    """The code of a fold: `step(state, event)` if `per_row`, otherwise `step(state, events)` with a batch."""

    name: str
    state: pa.DataType
    zero: pa.Array
    step: Code
    per_row: bool

    def begin(self) -> dict[str, Any]:
        """Return the state of a key without records."""
        (state,) = plain(self.zero)
        return dict(state)

    def advanced(self, state: Any, events: Events, where: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state after some records of a key."""
        if isinstance(events, pa.RecordBatch):
            return dict(self._stepped(state, events, where, {}))
        for event in events:
            state = self._stepped(state, event, where, event)
        return dict(state)

    def events(self, rows: pa.RecordBatch) -> Events:
        """Convert records to the form that the step takes, which can be sliced."""
        return rows.to_pylist(maps_as_pydicts="strict") if self.per_row else rows

    def _stepped(self, state: Any, event: Any, where: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        """Call the user's step once."""
        try:
            return self._settled(self.step(state, event))
        except Exception as error:
            key = ", ".join(f"{name} = {value!r}" for name, value in where.items())
            what = f"the step of fold {self.name!r}"
            more = {"key": dict(where)}
            raise failure(
                what, f"the key {key}" + (", the record" if row else ""), row, error, more=more
            ) from error

    def _settled(self, state: Any) -> dict[str, Any]:
        """Convert a state as if it were stored and read back, so that results do not depend on tick boundaries."""
        given = state if type(state) is dict and state.keys() == self._names else complete(state, self.state)
        inexact = [
            f
            for f, exact in self._fields
            if (value := given[f.name]) is not None and type(value) is not exact
        ]
        return {**given, **{f.name: _read_back(given[f.name], f) for f in inexact}} if inexact else given

    @functools.cached_property
    def _fields(self) -> list[tuple[pa.Field, type | None]]:
        """Columns of a state, with the Python type whose values are kept unchanged."""
        fields = (self.state.field(i) for i in range(self.state.num_fields))
        return [(f, _EXACT.get(f.type)) for f in fields]

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(f.name for f, _ in self._fields)


def _read_back(value: Any, field: pa.Field) -> Any:
    try:
        return plain(array_of([value], field.type))[0]
    except UNFIT as error:
        raise Misfit(f"{field.name} = {value!r} is not {format_type(field.type)}") from error


@dataclass(frozen=True)
class FoldStep:
    """A fold in an operator graph, called by the fold kernel (`operators.table.fold.Advance`)."""

    functions: Functions
    definition: FunctionDefinition
    key: tuple[str, ...]

    def __call__(
        self, rows: pa.RecordBatch, groups: KeyGroups, found: Ints, stored: pa.RecordBatch
    ) -> list[pa.Array]:
        """Return the columns of each key's new state."""
        code: FoldCode = self.functions.code(self.definition)
        width = len(self.key)
        names = [self.definition.returns.field(i).name for i in range(self.definition.returns.num_fields)]
        olds = [dict(zip(names, values, strict=True)) for values in _tuples(stored.columns[width:])]
        keys = _tuples(groups.keys.columns)
        states = []
        events = code.events(rows)
        for number, (start, size) in enumerate(zip(groups.starts, groups.sizes, strict=True)):
            state = olds[found[number]] if found[number] >= 0 else code.begin()
            where = dict(zip(self.key, keys[number], strict=True))
            states.append(code.advanced(state, events[start : start + size], where))
        return columns(states, self.definition)


def _tuples(parts: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*(plain(part) for part in parts), strict=True))


def columns(states: list[dict[str, Any]], definition: FunctionDefinition) -> list[pa.Array]:
    """Convert states to columns; raises EvaluationError if a value does not fit its type."""
    kind = definition.returns
    made = []
    for field in (kind.field(i) for i in range(kind.num_fields)):
        values = [state[field.name] for state in states]
        try:
            made.append(array_of(values, field.type))
        except UNFIT as error:
            misfit = Misfit(f"a state's {field.name} is not {format_type(field.type)}")
            raise failure(f"the step of fold {definition.name!r}", "a key", {}, misfit) from error
    return made


def graph(
    fold: FoldDefinition, schema: pa.Schema, definition: FunctionDefinition, functions: Functions
) -> tuple[g.FoldNode, pa.Schema]:
    """Return the operator graph of a fold over a topic with this schema, and the columns of its view."""
    key = tuple(schema.get_field_index(name) for name in fold.key)
    kind = definition.returns
    shown = pa.schema(
        [
            *(pa.field(schema.field(i).name, schema.field(i).type) for i in key),
            *(kind.field(i) for i in range(kind.num_fields)),
        ]
    )
    source = g.SourceNode(fold.topic, tuple(range(len(schema))), schema, append_only=True)
    handle = FoldStep(functions, definition, fold.key)
    return g.FoldNode(source, key, fold.name, definition.signature, shown, handle), shown


def recomputed(
    rows: pa.Table, fold: FoldDefinition, code: FoldCode, definition: FunctionDefinition
) -> pa.Table:
    """Compute the view from all records of the topic, in which each key's records are in order."""
    states: dict[tuple[Any, ...], dict[str, Any]] = {}
    shown: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    events: dict[tuple[Any, ...], list[int]] = {}
    keys = _tuples([rows.column(name).combine_chunks() for name in fold.key])
    for number, key in enumerate(keys):
        same = tuple("NaN" if value != value else value for value in key)
        shown.setdefault(same, tuple(v + 0.0 if isinstance(v, float) else v for v in key))
        events.setdefault(same, []).append(number)
    for same, numbers in events.items():
        where = dict(zip(fold.key, shown[same], strict=True))
        states[same] = code.begin()
        for batch in (
            rows.take(pa.array(numbers)).combine_chunks().to_batches()
        ):  # several batches beyond 2 GiB
            states[same] = code.advanced(states[same], code.events(batch), where)
    first = [
        pa.array([k[i] for k in shown.values()], rows.schema.field(n).type) for i, n in enumerate(fold.key)
    ]
    kind = definition.returns
    names = [*fold.key, *(kind.field(i).name for i in range(kind.num_fields))]
    return pa.Table.from_arrays([*first, *columns(list(states.values()), definition)], names=names)


def check_topic(topic: TopicDefinition, key: Sequence[str]) -> None:
    """Raise an error for a topic whose records of a key are not ordered, or are not all kept."""
    for name in key:
        if name not in topic.schema.names:
            raise SchemaError(
                f"topic {topic.name!r} has no column {name!r}",
                hint=f"its columns are {', '.join(topic.schema.names)}",
                topic=topic.name,
                column=name,
                reason="no-such-column",
            )
    if topic.key:
        raise UsageError(
            f"topic {topic.name!r} cannot be folded: it has a primary key, and a newer record replaces the older ones",
            hint="fold a topic without PRIMARY KEY, or aggregate this one in a view",
            topic=topic.name,
            reason="has-primary-key",
        )
    if topic.partitions > 1 and not (topic.routing and set(topic.routing) <= set(key)):
        raise UsageError(
            f"topic {topic.name!r} cannot be folded by {', '.join(key)}: records of one key may be in several partitions, "
            "which have no common order",
            hint=f"use a topic WITH (partition_by = {key[0]!r}), or with one partition",
            topic=topic.name,
            reason="key-in-several-partitions",
        )


def check_columns(name: str, key: Sequence[str], returns: pa.DataType) -> None:
    """Raise UsageError if a state column has the name of a key column."""
    taken = {k.lower() for k in key}
    for field in (returns.field(i) for i in range(returns.num_fields)):
        if field.name.lower() in taken:
            raise UsageError(
                f"fold {name!r} returns {field.name!r}, which is a column of its key",
                hint="omit it from returns: the columns of the key are the first of the view in any case",
                function=name,
                column=field.name,
                reason="returns-key",
            )
