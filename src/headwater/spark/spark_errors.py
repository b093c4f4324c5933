"""Translation of exceptions raised by Spark, the JVM, Arrow, DuckDB and sqlglot into Headwater errors.

Every call into these packages that a user's statement or rows can reach runs within `own_errors`, which takes the
translation: `unplanned` for a query that is being parsed or planned, `evaluation_error` for a query that runs over rows.
Exceptions of Headwater's own code, such as a KeyError, are bugs and propagate unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headwater.core.errors import EvaluationError, HeadwaterError, SparkJobError, StatementError

_PACKAGES = {"py4j", "pyspark", "pyarrow", "duckdb", "sqlglot", "sqlglotc", "sqlglotrs"}
_CAUSES_MAX = 20
_CLASS = re.compile(r"^(?:[\w$]+\.)+([\w$]+)(?:: |$)")
"""Matches the class name of a Java exception, with its package, before the message."""
_DEEP = ("StackOverflowError", "RecursionError", "FAILED_TO_PARSE_TOO_COMPLEX")
_LOST = ("Py4JNetworkError", "ConnectionRefusedError", "SparkContext was shut down", "stopped SparkContext")


@contextmanager
def own_errors(of: Callable[[Exception], HeadwaterError]) -> Iterator[None]:
    """Raise exceptions of foreign packages as `of(exception)`, within the block or the function that this decorates."""
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as error:
        if not is_foreign(error):
            raise
        raise of(error) from error


def is_foreign(error: BaseException) -> bool:
    """Whether an exception comes from a foreign package, or from a text or tree that such a package cannot process."""
    if isinstance(error, (RecursionError, UnicodeError)):
        return True
    if isinstance(error, (ValueError, TypeError)) and _raised_in(error).partition(".")[0] in _PACKAGES:
        return True
    if isinstance(error, ConnectionError) and _raised_in(error).partition(".")[0] == "py4j":
        return True  # the JVM no longer listens
    return any(kind.__module__.partition(".")[0] in _PACKAGES for kind in type(error).__mro__)


def _raised_in(error: BaseException) -> str:
    """Return the name of the module whose code raised an exception."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else str(place.tb_frame.f_globals.get("__name__", ""))


def unplanned(error: Exception) -> HeadwaterError:
    """Return the error for a query that Spark fails to plan for a reason that is not the user's mistake."""
    cause = first_line(error)
    if _is_lost(error, cause):
        return _lost(cause)
    if _is_among(error, cause, _DEEP):
        return StatementError(
            "the query is nested too deeply to be planned",
            detail=cause,
            hint="write a long chain of OR as IN (...), or split the query into views that read each other",
            reason="nested-too-deeply",
        )
    return StatementError(
        "Spark failed to plan this query",
        detail=cause,
        hint="find the part that fails by leaving out one after the other: EXPLAIN SELECT ... plans a query without creating a view; parts that fail together may work as two views and a join",
        reason="not-planned",
    )


def evaluation_error(error: Exception) -> HeadwaterError:
    """Return the error for an expression that fails on a row, with Spark's message in one sentence."""
    first = first_line(error)
    if _is_lost(error, first):
        return _lost(first)
    return EvaluationError(f"an expression failed: {first}", reason=first)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, without class, error condition and SQLSTATE; of a Java exception
    that wraps others, the message of the root cause."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    get = getattr(error, "getMessage", None)
    message = (get() if get is not None else None) or ("" if java is not None else str(error))
    message_line = _first(message)
    if java is not None and (
        not message_line or message_line.endswith("awaitResult:") or "Job aborted" in message_line
    ):
        message_line = _root(java) or message_line
    return message_line or type(error).__name__


def _root(java: Any) -> str:
    """Return the message of the root cause in a chain of Java exceptions."""
    for _ in range(_CAUSES_MAX):
        cause = java.getCause()
        if cause is None:
            break
        java = cause
    message = java.getMessage()
    message_line = _first(str(message)) if message is not None else ""
    return message_line or _first(str(java.toString()))


def _first(message: str) -> str:
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    first = lines[0] if lines else ""
    if first.startswith("[") and "] " in first:
        first = first.split("] ", 1)[1]
    first = _CLASS.sub(lambda m: f"{m[1]}: " if m[0].endswith(": ") else m[1], first)
    return first.split(" SQLSTATE:")[0].split(" If necessary set")[0].strip()


def _is_among(error: Exception, message_line: str, signs: tuple[str, ...]) -> bool:
    said = f"{type(error).__name__} {str(error)[:2_000]} {message_line}"
    return any(sign in said for sign in signs)


def _is_lost(error: Exception, message_line: str) -> bool:
    """Whether the JVM is gone: when it ends during a call, Py4J only reports that the call failed."""
    is_broken_off = type(error).__name__ == "Py4JError" and "Trace:" not in str(error)
    return is_broken_off or _is_among(error, message_line, _LOST)


def _lost(cause: str) -> SparkJobError:
    return SparkJobError(
        "the Spark session has ended",
        detail=cause,
        hint="Spark was stopped or ran out of memory: open the workspace again",
    )
