"""The boundary to users' code: every call is made here, its result is checked, and errors include the row and the traceback.

Runs in the driver and in Spark's Python workers alike, and therefore depends neither on Spark nor on the log.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.core.types import format_type
from headwater.core.values import UNFIT, array_of, castable, convert

Code = Callable[..., Any]
_HERE = Path(__file__).parent.as_posix()
_FROM_WORKER = re.compile(rf"{re.escape(EvaluationError.__module__)}\.EvaluationError: (.+)")
_DETAIL = re.compile(r"\n  detail: (.+?)(?=\n  hint: |\Z)", re.DOTALL)
_SHOWN_MAX = 80
_FRAMES_MAX = 8


@dataclass(frozen=True)
class BoundFunction:
    """A scalar or table function that is called with columns: one array for each argument; returns one value per row."""

    name: str
    code: Code
    returns: pa.DataType
    per_row: bool

    def __call__(self, arguments: Sequence[pa.Array], texts: Sequence[str] | None = None) -> pa.Array:
        """Return the values for rows of arguments; raises EvaluationError, naming a failing row. `texts` name the
        arguments."""
        count = len(arguments[0])
        if not count:
            return pa.array([], self.returns)
        try:
            return self._values(arguments, count)
        except Exception as error:
            if isinstance(error, Misfit) and error.whole:
                raise failure(f"function {self.name!r}", "", {}, error) from error
            place, cause = self._first_failure(arguments, count, error)
            names = texts or [f"argument {i + 1}" for i in range(len(arguments))]
            if place is None:
                raise failure(f"function {self.name!r}", "several rows together", {}, cause) from cause
            row = {n: plain(a.slice(place, 1))[0] for n, a in zip(names, arguments, strict=True)}
            raise failure(f"function {self.name!r}", "the row", row, cause, number=place) from cause

    def _values(self, arguments: Sequence[pa.Array], count: int) -> pa.Array:
        if self.per_row:
            rows = zip(*(plain(a) for a in arguments), strict=True)
            result: Any = [self._row(self.code(*row)) for row in rows]
        else:
            result = self.code(*arguments)
            if isinstance(result, list):
                result = [self._row(value) for value in result]
        return fitted(result, self.returns, count)

    def _row(self, value: Any) -> Any:
        """Normalize the result of one call; the rows of a table function may come from a generator, and as tuples."""
        if not pa.types.is_list(self.returns) or not pa.types.is_struct(self.returns.value_type):
            return value
        return None if value is None else [named(row, self.returns.value_type) for row in value]

    def _first_failure(
        self, arguments: Sequence[pa.Array], count: int, error: Exception
    ) -> tuple[int | None, Exception]:
        """Return the first row that fails by itself, found by bisection; None if only several rows together fail."""
        start = 0
        while count > 1:
            half = count // 2
            left, right = (start, half), (start + half, count - half)
            for at, length in (left, right):
                try:
                    self._values([a.slice(at, length) for a in arguments], length)
                except Exception as smaller:  # noqa: BLE001
                    start, count, error = at, length, smaller
                    break
            else:
                return None, error
        return start, error


@dataclass(frozen=True)
class Evaluated:
    """A function called by Spark in a worker: arrays in, an array out. Without `calls` it can be planned but not run."""

    name: str
    calls: Callable[[Sequence[pa.Array]], pa.Array] | None

    def __call__(self, *arrays: pa.Array) -> pa.Array:
        """Return the values for rows of arguments."""
        if not arrays:
            raise EvaluationError(f"function {self.name!r} is called without an argument", function=self.name)
        if self.calls is None:
            raise RuntimeError(f"function {self.name!r} is registered for planning only")
        return self.calls(arrays)


class Misfit(Exception):
    """Raised if a function's result does not match its declaration; `whole`: independently of the rows."""

    def __init__(self, message: str, *, whole: bool = False) -> None:
        super().__init__(message)
        self.whole = whole


def fitted(result: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Convert a function's result to an array of the declared type; raises Misfit for a wrong type or number of values."""
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, (str, bytes, Mapping)) or not hasattr(result, "__len__"):
        raise Misfit(f"it returned {_shown(result)}, not one value per row", whole=True)
    if len(result) != count:
        raise Misfit(f"it returned {len(result)} values for {count} rows", whole=True)
    wanted = format_type(kind)
    try:
        if isinstance(result, (list, tuple)):
            return array_of(list(result), kind)
        given = result if isinstance(result, pa.Array) else pa.array(result)
        if not castable(given.type, kind):
            raise Misfit(f"it returned an array of {given.type}, not of {wanted}", whole=True)
        return convert(given, kind)
    except UNFIT as error:
        shown = _shown(result[0] if count == 1 and isinstance(result, (list, tuple)) else result)
        raise Misfit(f"it returned {shown}, which is not {wanted}") from error


def named(row: Any, kind: pa.DataType) -> Any:
    """Convert a row given as a mapping or as a tuple to a mapping."""
    if row is None or isinstance(row, Mapping):
        return row
    names = [kind.field(i).name for i in range(kind.num_fields)]
    if not isinstance(row, (tuple, list)) or len(row) != len(names):
        raise Misfit(f"it returned the row {_shown(row)}, but its columns are {', '.join(names)}")
    return dict(zip(names, row, strict=True))


def complete(row: Any, kind: pa.DataType) -> dict[str, Any]:
    """Check that a row has every column and no other; return it as a dictionary."""
    made = named(row, kind)
    names = [kind.field(i).name for i in range(kind.num_fields)]
    if made is None or made.keys() != set(names):
        raise Misfit(f"it returned the row {_shown(row)}, but its columns are {', '.join(names)}")
    return dict(made)


def plain(column: pa.Array) -> list[Any]:
    """Convert a column to Python values: maps and structs become dictionaries, NULL becomes None."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def failure(
    what: str,
    where: str,
    row: Mapping[str, Any],
    cause: BaseException,
    *,
    number: int | None = None,
    more: Mapping[str, Any] | None = None,
) -> EvaluationError:
    """Return the error for a failed call, to be raised from its cause. Facts: row, number (in its batch), and `more`.

    `where` is empty if the failure does not concern rows.
    """
    said = str(cause).strip().splitlines()
    reason = said[0] if said else ""
    if not isinstance(cause, Misfit):
        reason = f"{type(cause).__name__}: {reason}" if reason else type(cause).__name__
    shown = ", ".join(f"{name} = {_shown(value)}" for name, value in row.items())
    place = _last_frame(cause)
    on = f" on {where}" if where else ""
    return EvaluationError(
        f"{what} failed{on}{' ' + shown if shown else ''}: {reason}" + (f" ({place})" if place else ""),
        detail=_trace(cause),
        hint="correct it and declare it with another version=; the views that use it are then rebuilt",
        reason=reason,
        row=dict(row),
        number=number,
        **(more or {}),
    )


def worker_failure(text: str) -> EvaluationError | None:
    """Parse the error of a call in a Spark Python worker from Spark's message; None if the message contains no such error."""
    found = _FROM_WORKER.search(text)
    if found is None:
        return None
    detail = _DETAIL.search(text, found.end())
    return EvaluationError(
        found[1], detail=None if detail is None else detail[1].strip(), reason=found[1], row=None, number=None
    )


def _frames(cause: BaseException) -> traceback.StackSummary:
    """Return the frames of the user's own code."""
    frames = traceback.extract_tb(cause.__traceback__)
    own = [f for f in frames if not f.filename.replace("\\", "/").startswith(_HERE)]
    return traceback.StackSummary.from_list(own[-_FRAMES_MAX:])


def _last_frame(cause: BaseException) -> str | None:
    frames = _frames(cause)
    if not frames or isinstance(cause, Misfit):
        return None
    last = frames[-1]
    return f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"


def _trace(cause: BaseException) -> str | None:
    lines = [line.rstrip("\n") for line in _frames(cause).format()]
    if not lines:
        return None
    text = "\n".join([*lines, *(x.rstrip("\n") for x in traceback.format_exception_only(cause))])
    return text.replace("\n", "\n    ")


def _shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
