"""Linear steps over a change: each row is processed independently and keeps its weight.

Columns that are only passed on never leave Arrow. Expressions are evaluated by `Evaluator`, except the few whose
meaning on Arrow is provably that of Spark (`native`). A filter runs before the steps above it, so an expression is
never evaluated for a row that the filter removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.dataflow.arrow_expressions import FAILURES, Native, native
from headwater.engine.dataflow.jvm_expressions import Compiled, Evaluator, conformed
from headwater.engine.dataflow.portable_stages import NotPortableError
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, concat
from headwater.plan.relations.relations import Bound, NotIn
from headwater.spark.catalyst import identity, items

Mask = npt.NDArray[np.bool_]
LinearStep = Callable[[Delta], Delta]


def compile_map(node: g.Map, evaluator: Evaluator) -> LinearStep:
    """Return all steps of a Map as one function of a change."""
    steps = compile_steps(node, evaluator)
    for place, (step, after) in enumerate(pairwise(node.steps)):
        if isinstance(step, g.Filter) and isinstance(after, g.Project):
            steps[place] = _filter(compile_values([step.condition], evaluator), columns_of(after.expressions))

    schema = node.schema  # without the node, whose expressions are of the JVM, the function can be pickled

    def run(delta: Delta) -> Delta:
        for step in steps:
            if not len(delta):
                break
            delta = step(delta)
        if not len(delta):
            return Delta.empty(schema)
        return delta.renamed(renamed(delta.rows, schema))

    return run


def compile_steps(node: g.Map, evaluator: Evaluator) -> list[LinearStep]:
    """Return each step of a Map as a function of a change, which must not be empty."""
    schemas = schemas_of(node)
    if schemas and schemas[-1].types == node.schema.types:
        schemas[-1] = node.schema  # so that the last step needs no renaming
    return [_step(step, schema, evaluator) for step, schema in zip(node.steps, schemas, strict=True)]


def compile_condition(condition: g.Expression, evaluator: Evaluator) -> Callable[[pa.RecordBatch], Mask]:
    """Return a condition as a function from rows to a mask, in which NULL is false."""
    compiled = compile_values([condition], evaluator)

    def mask(rows: pa.RecordBatch) -> Mask:
        return as_mask(compiled(rows, rows.num_rows)[0])

    return mask


def renamed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns under the names of a schema, casting a column whose type differs."""
    if rows.schema.equals(schema):
        return rows
    columns = [conformed(c, f.type) for c, f in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_mask(values: pa.Array) -> Mask:
    """Return a mask of where a boolean column is true."""
    filled = pc.fill_null(values, False) if values.null_count else values
    mask: Mask = filled.to_numpy(zero_copy_only=False)
    return mask


Values = Callable[[pa.RecordBatch, int], list[pa.Array]]
"""Function of rows and their number that returns the value of each expression."""


class CompiledValues:
    """The values of several expressions. Where all are evaluated on Arrow, it is pickled without the JVM: an expression that
    fails there raises one of `FAILURES`, instead of being evaluated by Spark."""

    def __init__(self, values: Values, natives: Sequence[Native] | None) -> None:
        self._values = values
        self._natives = natives

    def __call__(self, rows: pa.RecordBatch, count: int) -> list[pa.Array]:
        """Return the value of each expression."""
        return self._values(rows, count)

    def __reduce__(self) -> tuple[Callable[[Sequence[Native]], Values], tuple[Sequence[Native]]]:
        if self._natives is None:
            raise NotPortableError("an expression is evaluated by the JVM")
        return native_values, (self._natives,)


def native_values(natives: Sequence[Native]) -> Values:
    """Return the values of expressions that are all evaluated on Arrow."""
    return lambda rows, count: [native(rows, count) for native in natives]


def compile_values(expressions: Sequence[g.Expression], evaluator: Evaluator) -> Values:
    """Compile several expressions over the same rows: columns and native expressions in Arrow, the others in one JVM call."""
    natives: dict[int, Native] = {}
    handles: list[tuple[int, Any]] = []
    spare: dict[int, Bound] = {}
    asked: dict[int, Compiled] = {}
    attributes: Sequence[Any] = ()
    for place, expression in enumerate(expressions):
        if expression.column is not None:
            natives[place] = _column(expression.column)
        elif isinstance(expression.handle, NotIn):
            natives[place] = _not_in(expression.handle)
        else:
            bound: Bound = expression.handle
            made = native(bound.expression, bound.attributes, expression.type)
            if made is not None:
                natives[place] = made
                spare[place] = bound
            else:
                handles.append((place, bound.expression))
                attributes = bound.attributes
    compiled: Compiled | None = None
    if handles:
        compiled = evaluator.compile([h for _, h in handles], attributes)

    def one(place: int, rows: pa.RecordBatch, count: int) -> pa.Array:
        try:
            return natives[place](rows, count)
        except FAILURES:
            # Spark evaluates the expression too, and reports the error or finds that there is none
            if place not in asked:
                bound = spare[place]
                asked[place] = evaluator.compile([bound.expression], bound.attributes)
            return asked[place](rows, count)[0]

    def values(rows: pa.RecordBatch, count: int) -> list[pa.Array]:
        found: dict[int, pa.Array] = {place: one(place, rows, count) for place in natives}
        if compiled is not None:
            results = compiled(rows, count)
            found.update((place, r) for (place, _), r in zip(handles, results, strict=True))
        return [found[i] for i in range(len(expressions))]

    return CompiledValues(values, None if handles else [natives[i] for i in range(len(expressions))])


def _column(index: int) -> Native:
    return lambda rows, count: rows.column(index)


def _not_in(handle: NotIn) -> Native:
    def keep(rows: pa.RecordBatch, count: int) -> pa.Array:
        everything, filled = rows.column(handle.all_rows), rows.column(handle.filled)
        complete = pc.and_(pc.is_valid(rows.column(handle.x)), pc.equal(everything, filled))
        return pc.or_(pc.equal(everything, 0), complete)

    return keep


def _step(step: g.Step, schema: pa.Schema, evaluator: Evaluator) -> LinearStep:
    match step:
        case g.Filter(condition):
            return _filter(compile_values([condition], evaluator))
        case g.Project(expressions):
            return _select(expressions) or _project(compile_values(expressions, evaluator), schema)
        case g.Expand(projections):
            made = [_project(compile_values(p, evaluator), schema) for p in projections]
            return lambda delta: concat([project(delta) for project in made], schema)
        case g.Replicate(count, keep):
            return _replicate(compile_values([count, *keep], evaluator), schema)
        case g.Generate(_, kind, argument, outer, keep):
            return _generate(kind, compile_values([argument], evaluator), outer, keep, schema)
        case g.UdfCall():
            return _call(step, compile_values(step.args, evaluator), schema)


def _filter(values: Values, wanted: frozenset[int] | None = None) -> LinearStep:
    """Return a filter step; columns that are not in `wanted` are not read afterwards, so they are not copied and become
    NULL."""

    def keep(delta: Delta) -> Delta:
        mask = as_mask(values(delta.rows, len(delta))[0])
        if wanted is not None and len(wanted) < delta.rows.num_columns:
            nothing = pa.nulls(len(delta))
            columns = [c if i in wanted else nothing for i, c in enumerate(delta.rows.columns)]
            delta = delta.with_rows(pa.RecordBatch.from_arrays(columns, names=delta.rows.schema.names))
        return delta.filter(mask)

    return keep


def columns_of(expressions: Sequence[g.Expression]) -> frozenset[int]:
    """Return the indices of the input columns that expressions read."""
    found: set[int] = set()
    for expression in expressions:
        if expression.column is not None:
            found.add(expression.column)
        elif isinstance(expression.handle, NotIn):
            found.update(expression.handle)
        else:
            bound: Bound = expression.handle
            read = {identity(a) for a in items(bound.expression.references().toSeq())}
            found.update(i for i, a in enumerate(bound.attributes) if identity(a) in read)
    return frozenset(found)


def columns_used(node: g.Map) -> frozenset[int] | None:
    """Return the indices of the input columns that a Map uses; None if a step may use all columns."""
    used = frozenset[int]()
    for step in node.steps:
        match step:
            case g.Filter(condition):
                used |= columns_of([condition])
            case g.Project(expressions):
                return used | columns_of(expressions)
            case _:
                return None
    return None


def _project(values: Values, schema: pa.Schema) -> LinearStep:
    def project(delta: Delta) -> Delta:
        columns = values(delta.rows, len(delta))
        columns = [conformed(c, f.type) for c, f in zip(columns, schema, strict=True)]
        return delta.with_rows(pa.RecordBatch.from_arrays(columns, schema=schema))

    return project


def _select(expressions: Sequence[g.Expression]) -> LinearStep | None:
    """Return a projection that only passes columns on, or None if it computes any; only the last step restores the
    final names."""
    columns = [expression.column for expression in expressions if expression.column is not None]
    if not columns or len(columns) < len(expressions):
        return None
    return lambda delta: delta.with_rows(delta.rows.select(columns))


def _replicate(values: Values, schema: pa.Schema) -> LinearStep:
    def replicate(delta: Delta) -> Delta:
        count, *columns = values(delta.rows, len(delta))
        rows = pa.RecordBatch.from_arrays(columns[: len(schema)], schema=schema)
        copies = pc.fill_null(count, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return Delta(rows, delta.weights * np.maximum(copies, 0)).filter(copies > 0)

    return replicate


def _generate(kind: str, values: Values, outer: bool, keep: tuple[int, ...], schema: pa.Schema) -> LinearStep:
    def generate(delta: Delta) -> Delta:
        (argument,) = values(delta.rows, len(delta))
        elements, parents, positions = _elements(argument)
        if outer:
            # a row whose list is empty or NULL stays, with NULLs for the element
            bare = np.setdiff1d(np.arange(len(delta)), parents)
            parents = np.concatenate([parents, bare])
            elements = [pa.concat_arrays([e, pa.nulls(len(bare), e.type)]) for e in elements]
            positions = pa.concat_arrays([positions, pa.nulls(len(bare), pa.int32())])
        if kind == "posexplode":
            elements = [positions, *elements]
        if kind == "inline":
            (structs,) = elements
            elements = [pc.struct_field(structs, [i]) for i in range(structs.type.num_fields)]
        taken = delta.take(parents)
        columns = [taken.rows.column(i) for i in keep] + elements
        typed = [conformed(c, f.type) for c, f in zip(columns, schema, strict=True)]
        return taken.with_rows(pa.RecordBatch.from_arrays(typed, schema=schema))

    return generate


def _call(step: g.UdfCall, values: Values, schema: pa.Schema) -> LinearStep:
    def call(delta: Delta) -> Delta:
        made = conformed(step.handle(values(delta.rows, len(delta))), step.type)
        return delta.with_rows(pa.RecordBatch.from_arrays([*delta.rows.columns, made], schema=schema))

    return call


def _elements(argument: pa.Array) -> tuple[list[pa.Array], npt.NDArray[np.int64], pa.Array]:
    """Return the elements of lists or maps, the row of each element, and its position within the list."""
    if pa.types.is_map(argument.type):
        as_list = pa.ListArray.from_arrays(
            argument.offsets,
            pa.StructArray.from_arrays([argument.keys, argument.items], names=["key", "value"]),
        )
        if argument.null_count:
            as_list = pc.if_else(argument.is_valid(), as_list, pa.nulls(len(argument), as_list.type))
        elements, parents, positions = _elements(as_list)
        return [pc.struct_field(elements[0], [0]), pc.struct_field(elements[0], [1])], parents, positions
    flat = argument.flatten()
    parents = pc.list_parent_indices(argument).to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.searchsorted(parents, parents)
    positions = pa.array((np.arange(len(parents)) - starts).astype(np.int32))
    return [flat], parents, positions


def schemas_of(node: g.Map) -> list[pa.Schema]:
    """Return the schema after each step; readers see only the names of the last one."""
    schemas: list[pa.Schema] = []
    current = node.input.schema
    for step in node.steps:
        match step:
            case g.Filter():
                pass
            case g.Project(expressions):
                current = positional([e.type for e in expressions])
            case g.Expand(projections):
                current = positional([e.type for e in projections[0]])
            case g.Replicate(_, keep):
                current = positional([e.type for e in keep])
            case g.Generate(_, kind, argument, _, keep):
                current = positional(
                    [*(current.field(i).type for i in keep), *_generated(kind, argument.type)]
                )
            case g.UdfCall():
                current = positional([*current.types, step.type])
        schemas.append(current)
    return schemas


def _generated(kind: str, argument: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(argument):
        types = [argument.key_type, argument.item_type]
    elif kind == "inline":
        types = [argument.value_type.field(i).type for i in range(argument.value_type.num_fields)]
    else:
        types = [argument.value_type]
    return [pa.int32(), *types] if kind == "posexplode" else types


def positional(types: Sequence[pa.DataType]) -> pa.Schema:
    """Return a schema of these types whose columns are named by their positions."""
    return pa.schema([pa.field(str(i), t) for i, t in enumerate(types)])
