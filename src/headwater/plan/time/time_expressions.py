"""Catalyst expressions over times: in microseconds, shifted by a constant, compared."""

from __future__ import annotations

from headwater.spark.catalyst import Catalyst, Jvm, module


def micros(catalyst: Catalyst, time: Jvm) -> Jvm:
    """Convert a timestamp to microseconds."""
    types = catalyst.jvm.org.apache.spark.sql.types
    return catalyst.expressions.PreciseTimestampConversion(
        time, module(types, "TimestampType"), module(types, "LongType")
    )


def plus(catalyst: Catalyst, time: Jvm, more: int) -> Jvm:
    """Add a constant to a time in microseconds."""
    return catalyst.expressions.Add(time, long(catalyst, more)) if more else time


def field(catalyst: Catalyst, struct: Jvm, ordinal: int) -> Jvm:
    """Return a field of a struct; the start of a window is field 0, the end is field 1."""
    return catalyst.expressions.GetStructField(struct, ordinal, catalyst.none())


def coalesced(catalyst: Catalyst, condition: Jvm) -> Jvm:
    """Make a condition false where it is NULL: before the first watermark no row is late."""
    false = module(catalyst.expressions, "Literal").apply(False)
    return catalyst.expressions.Coalesce(catalyst.seq([condition, false]))


def number(catalyst: Catalyst, value: int) -> Jvm:
    """Return an INT literal."""
    return module(catalyst.expressions, "Literal").apply(value)


def long(catalyst: Catalyst, value: int) -> Jvm:
    """Return a BIGINT literal."""
    types = catalyst.jvm.org.apache.spark.sql.types
    return catalyst.cast(number(catalyst, value), module(types, "LongType"))


def no_time(catalyst: Catalyst) -> Jvm:
    """Return NULL of type TIMESTAMP."""
    types = catalyst.jvm.org.apache.spark.sql.types
    return module(catalyst.expressions, "Literal").create(None, module(types, "TimestampType"))
