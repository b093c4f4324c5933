"""Navigation in MATCH_RECOGNIZE: PREV, NEXT, FIRST, LAST, and FINAL or RUNNING before them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwater.operators.match_recognize import spec as k
from headwater.plan.match_recognize.pattern_aggregates import is_aggregate
from headwater.plan.match_recognize.pattern_inputs import classified_at, column_at
from headwater.plan.match_recognize.pattern_scope import (
    LOGICAL,
    PHYSICAL,
    PatternScope,
    called_name,
    is_classifier,
    match_call,
)
from headwater.spark.catalyst import Jvm, kind, option

_OFFSET_MAX = 1 << 20


@dataclass(frozen=True)
class Navigated:
    """An expression that reads row classifications, evaluated at a navigated row."""

    of: Jvm
    at: k.Navigate


class PatternNavigation:
    """Reads the navigation of one clause."""

    def __init__(self, scope: PatternScope, prefixes: dict[int, bool]) -> None:
        """`prefixes` maps the start of a call to whether FINAL (true) or RUNNING (false) precedes it."""
        self._scope = scope
        self._prefixes = prefixes

    def is_final(self, e: Jvm, called: str, is_condition: bool) -> bool:
        """Whether FINAL precedes a call."""
        start = option(e.origin().startIndex())
        is_final = None if start is None else self._prefixes.get(start)
        if is_final is None:
            return False
        if called not in LOGICAL and not is_aggregate(self._scope.catalyst, e):
            self._scope.refuse(
                e,
                "RUNNING and FINAL can only precede FIRST, LAST and aggregates",
                hint="FINAL LAST(A.x), FINAL sum(A.x)",
                reason="running-final",
            )
        if is_final and is_condition:
            self._scope.refuse(
                e,
                "FINAL cannot be used in DEFINE: conditions are evaluated before the match is complete",
                hint="leave FINAL out",
                reason="final-in-define",
            )
        return is_final

    def physical(self, e: Jvm, called: str, is_condition: bool) -> k.Input | Navigated:
        """Read PREV or NEXT, whose operand may be FIRST or LAST."""
        of, count = self._offset(e, called, default=1)
        inner = called_name(of)
        offset = PHYSICAL[called] * count
        if inner in LOGICAL:
            found = self.logical(of, inner or "", self.is_final(of, inner or "", is_condition))
            if isinstance(found, Navigated):
                return replace(found, at=replace(found.at, offset=offset))
            return replace(found, offset=offset)
        return self._navigated(of, e, k.Navigate(0, offset=offset))

    def logical(self, e: Jvm, called: str, is_final: bool) -> k.Navigate | k.Classify | Navigated:
        """Read FIRST or LAST."""
        of, nth = self._offset(e, called, default=0)
        if (inner := called_name(of)) in PHYSICAL:
            self._scope.refuse(
                e,
                f"{called.upper()} cannot contain {(inner or '').upper()}",
                hint=f"write {(inner or '').upper()}({called.upper()}(A.x), 1)",
                reason="nested-navigation",
            )
        return self._navigated(of, e, k.Navigate(0, None, called, nth, final=is_final))  # type: ignore[arg-type]

    def _navigated(self, of: Jvm, whole: Jvm, at: k.Navigate) -> k.Navigate | k.Classify | Navigated:
        """Return a value at a navigated row."""
        if is_classifier(of):
            return classified_at(replace(at, variables=self._scope.classified(of)))
        at = replace(at, variables=self._scope.variables(of, whole))
        if match_call(of) is not None:
            return Navigated(of, at)
        return column_at(self._scope.columns.place(self._scope.stripped(of)), at)

    def _offset(self, e: Jvm, called: str, default: int) -> tuple[Jvm, int]:
        arguments = self._scope.arguments(e)
        if len(arguments) not in (1, 2):
            self._scope.refuse(
                e,
                f"{called.upper()} takes a value and a number of rows",
                hint=f"{called.upper()}(A.x, 1)",
                reason="navigation-arguments",
            )
        if len(arguments) == 1:
            return arguments[0], default
        number = arguments[1]
        value = number.value() if kind(number) == "Literal" else None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _OFFSET_MAX:
            self._scope.refuse(
                number,
                "the number of rows must be constant and at least 0",
                hint=f"{called.upper()}(A.x, 1)",
                reason="navigation-offset",
            )
        return arguments[0], value
