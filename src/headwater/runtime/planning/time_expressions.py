"""Expressions over times, as Catalyst has them: in microseconds, moved by a constant, compared."""

from __future__ import annotations

from headwater.runtime.planning.catalyst import Catalyst, Jvm, module


class TimeExpressions:
    """Makes expressions."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._c = catalyst

    def _micros(self, time: Jvm) -> Jvm:
        types = self._c.jvm.org.apache.spark.sql.types
        return self._c.expressions.PreciseTimestampConversion(
            time, module(types, "TimestampType"), module(types, "LongType")
        )

    def _plus(self, micros: Jvm, more: int) -> Jvm:
        return self._c.expressions.Add(micros, self._long(more)) if more else micros

    def _field(self, struct: Jvm, ordinal: int) -> Jvm:
        return self._c.expressions.GetStructField(struct, ordinal, self._c.none())

    def _coalesced(self, condition: Jvm) -> Jvm:
        """A condition that is false where it is NULL: before the first watermark nothing is late."""
        false = module(self._c.expressions, "Literal").apply(False)
        return self._c.expressions.Coalesce(self._c.seq([condition, false]))

    def _number(self, value: int) -> Jvm:
        return module(self._c.expressions, "Literal").apply(value)

    def _long(self, value: int) -> Jvm:
        kinds = self._c.jvm.org.apache.spark.sql.types
        return self._c.cast(self._number(value), module(kinds, "LongType"))

    def _no_time(self) -> Jvm:
        kinds = self._c.jvm.org.apache.spark.sql.types
        return module(self._c.expressions, "Literal").create(None, module(kinds, "TimestampType"))
