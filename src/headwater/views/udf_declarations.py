"""Declaration of users' functions and folds in a workspace, and its effect on the views that use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog.view_definitions import ViewDefinition, define_view
from headwater.core.errors import HeadwaterError, UsageError, ViewExistsError
from headwater.core.types import format_type
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.retention_holds import hold_from_start
from headwater.engine.collections.workload import VIEW, definitions, in_order, keep_past, unread
from headwater.log.protocol import Log
from headwater.plan.time.late_policy import Policy
from headwater.sql.statements import QueryText
from headwater.state.manifest import Manifest
from headwater.udf.folds import FoldCode, FoldDefinition, check_columns, check_topic, graph, parse_fold
from headwater.udf.udf_calls import BoundFunction, Misfit, complete, fitted
from headwater.udf.udf_definitions import FunctionDefinition, define, names_in
from headwater.udf.udf_registry import Functions
from headwater.udf.udf_states import AggregateCode


@dataclass(frozen=True)
class FoldFunction:
    """What a fold evaluates, as its user gave it: the first state and the step from an event to the next state."""

    zero: Any
    step: Any
    per_row: bool


class Declarations:
    """Declares functions in one workspace. An unchanged declaration writes nothing to the log."""

    def __init__(self, log: Log, functions: Functions, tools: Callable[[], EngineContext]) -> None:
        self._log = log
        self._functions = functions
        self._tools = tools

    def function(self, name: str, code: Any, returns: Any, per_row: bool, version: Any) -> list[str]:
        """Declare a scalar function, and return the views to rebuild, as every method here does."""
        definition = define("scalar", name, returns, version)
        _callable(definition.name, "fn", code)
        return self._declared(definition, BoundFunction(definition.name, code, definition.returns, per_row))

    def table_function(self, name: str, code: Any, returns: Any, per_row: bool, version: Any) -> list[str]:
        """Declare a table function."""
        definition = define("table", name, returns, version)
        _callable(definition.name, "fn", code)
        return self._declared(definition, BoundFunction(definition.name, code, definition.returns, per_row))

    def aggregate(
        self, name: str, parts: dict[str, Any], state: Any, returns: Any, version: Any
    ) -> list[str]:
        """Declare an aggregate; `parts` are zero, add, merge, remove and result."""
        kept = returns if state is None else state
        definition = define(
            "aggregate", name, returns, version, state=kept, removes=parts["remove"] is not None
        )
        for part in ("add", "merge", "remove", "result"):
            if parts[part] is not None or part in ("add", "merge"):
                _callable(definition.name, part, parts[part])
        if parts["result"] is None and definition.state != definition.returns:
            raise UsageError(
                f"function {definition.name!r} has another state type than its result, and no result=",
                hint="result=lambda state: ... computes the result from a state",
                function=definition.name,
                reason="no-result",
            )
        assert definition.state is not None
        zero = _zero(definition.name, parts["zero"], definition.state)
        code = AggregateCode(
            definition.name,
            definition.state,
            definition.returns,
            zero,
            parts["add"],
            parts["merge"],
            parts["remove"],
            parts["result"],
        )
        return self._declared(definition, code)

    def fold(
        self,
        name: str,
        topic: str,
        key: Sequence[str],
        function: FoldFunction,
        returns: Any,
        version: Any,
    ) -> list[str]:
        """Declare a fold, and create its view, or replace a different view of the fold."""
        definition = define("fold", name, returns, version)
        _callable(definition.name, "step", function.step)
        source = self._log.topic(topic)
        # the fold would be given whole records
        for lost in unread(source):
            raise lost.error(source.name)
        check_topic(source, key)
        check_columns(definition.name, key, definition.returns)
        begin = _zero(definition.name, function.zero, definition.returns)
        fold = FoldDefinition(source.name, tuple(key), definition.name)
        _, shown = graph(fold, source.schema, definition, self._functions)
        inputs = {source.name: tuple(source.schema.names)}
        made = define_view(definition.name, fold.text, shown, inputs=inputs)
        code = FoldCode(definition.name, definition.returns, begin, function.step, function.per_row)
        return self._fold_view(made, definition, code)

    def _fold_view(self, made: ViewDefinition, definition: FunctionDefinition, code: FoldCode) -> list[str]:
        existing = self._log.entries(VIEW).get(made.name)
        if existing is not None:
            then = ViewDefinition.from_document(existing.document)
            if parse_fold(then.query) is None:
                raise ViewExistsError(
                    f"view {then.name!r} exists, and is not a fold",
                    hint="give the fold another name, or DROP VIEW first",
                    view=then.name,
                    same=False,
                )
            if then.query == made.query:
                made = dataclasses.replace(made, inputs=then.inputs)
            if existing.document == made.to_document():
                return self._declared(definition, code)
            keep_past(self._log, existing.name, served=False)
        hold_from_start(self._log, made.reads)
        replaced = self._functions.declare(definition, code)
        entry = self._log.put_entry(
            VIEW, made.name, made.to_document(), expect=None if existing is None else existing.sequence
        )
        try:
            self._retype({made.name})
        except HeadwaterError as error:
            # a view that did not exist has no readers
            assert existing is not None
            if replaced is not None:
                self._functions.restore(replaced)
            self._log.put_entry(VIEW, made.name, existing.document, expect=entry.sequence)
            raise _not_standing(definition, error) from error
        return [] if existing is None else [made.name]

    def _declared(self, definition: FunctionDefinition, code: Any) -> list[str]:
        replaced = self._functions.declare(definition, code)
        if replaced is None:
            return []
        users = {v.name for v in definitions(self._log).values() if _uses(v, definition)}
        if replaced.returns != definition.returns:
            try:
                self._retype(users)
            except HeadwaterError as error:
                self._functions.restore(replaced)
                raise _not_standing(definition, error) from error
        return sorted(users)

    def _retype(self, changed: set[str]) -> None:
        """Give some views, and those above them, their new columns. StatementError if a view would become invalid; then all
        are left unchanged."""
        done: list[ViewDefinition] = []
        for view in in_order(definitions(self._log)):
            if not changed & {view.name, *view.reads} or parse_fold(view.query) is not None:
                continue
            changed.add(view.name)
            try:
                planned = (
                    self._tools().catalog.plan(QueryText(view.query), view.inputs, Policy.of(view)).schema
                )
            except HeadwaterError:
                for each in done:
                    self._put(each)
                raise
            columns = pa.schema([f.with_name(n) for f, n in zip(planned, view.columns.names, strict=True)])
            if columns != view.columns:
                keep_past(self._log, view.name, served=False)
                self._put(dataclasses.replace(view, columns=columns))
                done.append(view)

    def _put(self, view: ViewDefinition) -> None:
        entry = self._log.entries(VIEW)[view.name]
        self._log.put_entry(VIEW, view.name, view.to_document(), expect=entry.sequence)


def _uses(view: ViewDefinition, definition: FunctionDefinition) -> bool:
    return definition.name.lower() in names_in(view.query)


def _not_standing(definition: FunctionDefinition, error: HeadwaterError) -> UsageError:
    return UsageError(
        f"function {definition.name!r} cannot return {format_type(definition.returns)}: a view that uses it would become invalid",
        detail=error.message,
        hint="drop or replace the view first, or give the function another name",
        function=definition.name,
        reason="breaks-view",
    )


def stopped_for(manifest: Manifest | None, functions: Iterable[str]) -> list[str]:
    """Return the views that are stopped because a process had no code for one of these functions."""
    if manifest is None:
        return []
    reasons = tuple(f"function {name!r} is ".lower() for name in functions)
    stopped = (v for v in manifest.views.values() if v.status == "stopped" and v.reason is not None)
    return [v.name for v in stopped if str(v.reason).lower().startswith(reasons)]


def _callable(name: str, what: str, code: Any) -> None:
    if not callable(code):
        raise UsageError(f"{what} of {name!r} is a function, not {code!r}", function=name, part=what)


def _zero(name: str, value: Any, kind: pa.DataType) -> pa.Array:
    """Return the zero of a state; a callable is called once."""
    given = value() if callable(value) else value
    try:
        if pa.types.is_struct(kind) and given is not None:
            given = complete(given, kind)
        return fitted([given], kind, 1)
    except Misfit:
        raise UsageError(
            f"zero of {name!r} is {given!r}, which is not {format_type(kind)}", function=name, part="zero"
        ) from None
