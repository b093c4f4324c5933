"""Expressions over times, as Catalyst has them: in microseconds, moved by a constant, compared."""

from __future__ import annotations

from headwater.spark.catalyst import Catalyst, Jvm, module


def micros(catalyst: Catalyst, time: Jvm) -> Jvm:
    """A timestamp in microseconds."""
    types = catalyst.jvm.org.apache.spark.sql.types
    return catalyst.expressions.PreciseTimestampConversion(
        time, module(types, "TimestampType"), module(types, "LongType")
    )


def plus(catalyst: Catalyst, time: Jvm, more: int) -> Jvm:
    """A time in microseconds, moved by a constant."""
    return catalyst.expressions.Add(time, long(catalyst, more)) if more else time


def field(catalyst: Catalyst, struct: Jvm, ordinal: int) -> Jvm:
    """A field of a struct: of a window 0 is its start, 1 its end."""
    return catalyst.expressions.GetStructField(struct, ordinal, catalyst.none())


def coalesced(catalyst: Catalyst, condition: Jvm) -> Jvm:
    """A condition that is false where it is NULL: before the first watermark nothing is late."""
    false = module(catalyst.expressions, "Literal").apply(False)
    return catalyst.expressions.Coalesce(catalyst.seq([condition, false]))


def number(catalyst: Catalyst, value: int) -> Jvm:
    """A constant INT."""
    return module(catalyst.expressions, "Literal").apply(value)


def long(catalyst: Catalyst, value: int) -> Jvm:
    """A constant BIGINT."""
    types = catalyst.jvm.org.apache.spark.sql.types
    return catalyst.cast(number(catalyst, value), module(types, "LongType"))


def no_time(catalyst: Catalyst) -> Jvm:
    """NULL as a timestamp."""
    types = catalyst.jvm.org.apache.spark.sql.types
    return module(catalyst.expressions, "Literal").create(None, module(types, "TimestampType"))
