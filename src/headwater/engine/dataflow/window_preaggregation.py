"""Pre-aggregation over the elements of sequences, as cumulative windows use them, where a row is in many groups at once.

The graph has a list for each row, a row for each element of the list, and groups of these rows. If only the keys of the
groups depend on the element, rows are combined first, and the combined buffers are then expanded to the groups
(`operators.window.cumulate`): the state and the result are the same, without a row for each pair of row and group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.linear import LinearStep, columns_of, compile_map, positional, schemas_of
from headwater.operators import graph as g
from headwater.operators.aggregate import aggregate
from headwater.operators.aggregate.aggregate import AggregateSpec
from headwater.operators.window.cumulate import CumulateSpec, cumulated
from headwater.operators.zset.delta import Delta, empty_rows
from headwater.operators.zset.numpy_columns import nulls
from headwater.operators.zset.runs import Run
from headwater.plan.relations.relations import Bound
from headwater.spark.catalyst import children_of, kind

_NUMBER = pa.int64()
_Columns = dict[int, pa.Array]


@dataclass(frozen=True)
class _Shape:
    """The parts of a Map with a generator, as the aggregate above it uses them."""

    below: g.Map
    generator: g.Generate
    step: int
    """The step of the sequences."""
    steps: tuple[g.Step, ...]
    """The steps of the Map before the generator."""
    above: tuple[g.Project, ...]
    """The steps of the Map after the generator."""
    types: tuple[pa.DataType, ...]
    """Types of the columns after the generator, the element last."""
    spread: tuple[int, ...]
    """Columns of the result that depend on the element."""
    kept: tuple[int, ...]
    """The other columns after the generator on which the columns of `spread` depend."""


class WindowPreaggregation:
    """A Map and the aggregate above it, executed as one step."""

    def __init__(self, shape: _Shape, spec: AggregateSpec, evaluator: Evaluator) -> None:
        self._shape = shape
        self._spec = spec
        fixed = [i for i in range(len(spec.schema)) if i not in shape.spread]
        self._own = [i for i in fixed if i < spec.width]
        self._arguments = [i for i in fixed if i >= spec.width]
        self._below = self._listed(evaluator)
        self._fixed = self._computed(fixed, evaluator)
        self._keys = self._computed(shape.spread, evaluator)
        self._cumulate = self._combined()

    def step(self, delta: Delta, state: Sequence[Run]) -> aggregate.AggregateStep | None:
        """Apply a change of the Map's input; return None if the lists are not sequences from a first to a last number."""
        spec, kept = self._spec, self._shape.kept
        below = self._below(delta)
        there = [c.is_valid().to_numpy(zero_copy_only=False) for c in below.rows.columns[-2:]]
        below = below.filter(there[0] & there[1])
        if not len(below):
            return aggregate.step(spec, state, (), Delta.empty(spec.schema))
        *columns, last, first = below.rows.columns
        # the first element is in the sequence, and expressions that do not depend on the element have the same value for it
        fixed = self._run(self._fixed, [*columns, first])
        parts = [fixed[i] for i in self._own], [columns[i] for i in kept], [fixed[i] for i in self._arguments]
        given = [*parts[0], *parts[1], last, first, *parts[2]]
        rows = pa.RecordBatch.from_arrays(given, schema=self._cumulate.aggregate.schema)
        brought = cumulated(self._cumulate, below.with_rows(rows))
        if brought is None:
            return None
        held = dict(zip(kept, brought.keys.columns[len(self._own) :], strict=True))
        types = enumerate(self._shape.types[:-1])
        columns = [held[i] if i in held else nulls(len(brought.at), type_) for i, type_ in types]
        keys = self._run(self._keys, [*columns, pa.array(brought.at)])
        keys |= zip(self._own, brought.keys.columns, strict=False)
        combined = [*(keys[i] for i in range(spec.width)), *brought.kept]
        return aggregate.step_combined(spec, state, pa.RecordBatch.from_arrays(combined, schema=spec.state))

    def _listed(self, evaluator: Evaluator) -> LinearStep:
        """Compile a Map to the columns that the generator keeps, then the last and the first element of each list."""
        shape = self._shape
        lists = shape.generator.argument.handle
        first, last, _ = children_of(lists.expression)
        types = shape.types[:-1]
        columns = [g.Expression("", t, c, None) for t, c in zip(types, shape.generator.keep, strict=True)]
        columns += [g.Expression("", _NUMBER, None, Bound(e, lists.attributes)) for e in (last, first)]
        schema = positional([*types, _NUMBER, _NUMBER])
        return compile_map(
            g.Map(shape.below.input, (*shape.steps, g.Project(tuple(columns))), schema), evaluator
        )

    def _computed(self, wanted: Sequence[int], evaluator: Evaluator) -> LinearStep:
        """Compile the steps after the generator, as far as the columns in `wanted` need them."""
        needed = [frozenset(wanted)]
        for project in reversed(self._shape.above):
            needed.insert(0, columns_of([project.expressions[i] for i in needed[0]]))
        types = self._shape.types
        source = g.Constant(empty_rows(positional(types)), positional(types))
        steps = []
        for project, after in zip(self._shape.above, needed[1:], strict=True):
            # columns keep their positions: a column that is not needed is replaced by any existing column
            any_one = g.Expression("", types[0], 0, None)
            steps.append(
                g.Project(tuple(e if i in after else any_one for i, e in enumerate(project.expressions)))
            )
            types = tuple(e.type for e in steps[-1].expressions)
        return compile_map(g.Map(source, tuple(steps), positional(types)), evaluator)

    def _run(self, computed: LinearStep, columns: list[pa.Array]) -> _Columns:
        rows = pa.RecordBatch.from_arrays(columns, schema=positional(self._shape.types))
        return dict(enumerate(computed(Delta.of(rows)).rows.columns))

    def _combined(self) -> CumulateSpec:
        """Return the combination of rows: by the keys that do not depend on the element, the other columns that the
        remaining keys depend on, and the list."""
        shape, schema = self._shape, self._spec.schema
        keys = [*(schema.field(i).type for i in self._own), *(shape.types[i] for i in shape.kept)]
        keys += [_NUMBER, _NUMBER]
        fields = [pa.field(f"key_{i}", type_) for i, type_ in enumerate(keys)]
        fields += [schema.field(i) for i in self._arguments]
        places = {i: place for place, i in enumerate(self._own)}
        places |= {i: place for place, i in enumerate(self._arguments, len(keys))}
        functions = [
            replace(
                f,
                args=tuple(places[i] for i in f.args),
                filter=None if f.filter is None else places[f.filter],
            )
            for f in self._spec.functions
        ]
        return CumulateSpec(AggregateSpec(pa.schema(fields), len(keys), tuple(functions)), shape.step)


def spread(node: g.AggregateNode, spec: AggregateSpec, evaluator: Evaluator) -> WindowPreaggregation | None:
    """Return the pre-aggregation of an aggregate together with the Map that it reads; None if it is not possible."""
    shape = _shape(node.input) if isinstance(node.input, g.Map) and spec.combinable else None
    if shape is None or not shape.spread:
        return None
    read = {i for f in spec.functions for i in (*f.args, f.filter)}
    if any(i >= spec.width or i in read for i in shape.spread):
        return None
    return WindowPreaggregation(shape, spec, evaluator)


def _shape(below: g.Map) -> _Shape | None:
    places = [i for i, step in enumerate(below.steps) if isinstance(step, g.Generate)]
    above = [step for step in below.steps[places[-1] + 1 :] if isinstance(step, g.Project)] if places else []
    generator = below.steps[places[-1]] if places else None
    if not isinstance(generator, g.Generate) or len(above) < len(below.steps) - places[-1] - 1:
        return None
    step = _step_of(generator)
    if step is None:
        return None
    element = len(generator.keep)
    made_of = [{i} for i in range(element + 1)]
    for project in above:
        made_of = [{m for i in columns_of([e]) for m in made_of[i]} for e in project.expressions]
    found = tuple(i for i, columns in enumerate(made_of) if element in columns)
    kept = sorted({i for place in found for i in made_of[place]} - {element})
    types = tuple(schemas_of(below)[places[-1]].types)
    if not all(_is_itself(types[i]) for i in kept):
        return None
    return _Shape(below, generator, step, below.steps[: places[-1]], tuple(above), types, found, tuple(kept))


def _step_of(generator: g.Generate) -> int | None:
    """Return the step of the exploded sequences if it is a positive literal; None otherwise."""
    lists = generator.argument.handle
    if generator.kind != "explode" or generator.outer or not isinstance(lists, Bound):
        return None
    if kind(lists.expression) != "Sequence":
        return None
    parts = children_of(lists.expression)
    if len(parts) != 3 or any(part.dataType().typeName() != "long" for part in parts):
        return None
    step = parts[-1].value() if kind(parts[-1]) == "Literal" else None
    return int(step) if step is not None and step > 0 else None


def _is_itself(type_: pa.DataType) -> bool:
    """Whether values that are equal as keys are the same in all expressions; 0.0 and -0.0, for example, are not."""
    return not pa.types.is_floating(type_) and not pa.types.is_nested(type_)
