"""Parser of the MATCH_RECOGNIZE clause: everything but its expressions, which Spark parses.

    MATCH_RECOGNIZE (
      [PARTITION BY column, ...]
      ORDER BY expression [ASC | DESC] [NULLS FIRST | LAST], ...
      [MEASURES expression AS name, ...]
      [ONE ROW PER MATCH | ALL ROWS PER MATCH [SHOW EMPTY MATCHES | OMIT EMPTY MATCHES | WITH UNMATCHED ROWS]]
      [AFTER MATCH SKIP {PAST LAST ROW | TO NEXT ROW | TO [FIRST | LAST] variable}]
      [INITIAL] PATTERN (pattern) [WITHIN interval [EMIT TIMEOUTS]]
      [SUBSET name = (variable, ...), ...]
      [DEFINE variable AS condition, ...]
    )

`match_places` locates the clause in a query; `match_recognize_pattern` parses the pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from headwater.core.errors import StatementError
from headwater.operators.match_recognize.spec import RowsPerMatch
from headwater.sql.lexer import Word, Words, pointing, shown
from headwater.sql.match_recognize_pattern import ParsedPattern, read_pattern
from headwater.sql.match_recognize_places import MatchPlace
from headwater.sql.statements import QueryText

SkipKind = Literal["past last row", "to next row", "to first", "to last"]
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_ROWS: dict[tuple[str, ...], RowsPerMatch] = {
    ("SHOW", "EMPTY", "MATCHES"): "all",
    ("OMIT", "EMPTY", "MATCHES"): "all, omit empty",
    ("WITH", "UNMATCHED", "ROWS"): "all, with unmatched",
}
_PARTS = (
    ("MEASURES",),
    ("ONE", "ROW"),
    ("ALL", "ROWS"),
    ("AFTER", "MATCH"),
    ("INITIAL", "PATTERN"),
    ("SEEK", "PATTERN"),
    ("PATTERN", "("),
    ("ORDER", "BY"),
    ("DEFINE",),
)
"""Keywords that end a list in the parts before PATTERN."""


@dataclass(frozen=True)
class ClausePart:
    """An expression: characters start..end of a query's text."""

    start: int
    end: int


@dataclass(frozen=True)
class Prefixed:
    """RUNNING or FINAL: its position, and the start of the call after it."""

    start: int
    end: int
    call: int
    is_final: bool


@dataclass(frozen=True)
class OrderPart:
    """One key of ORDER BY."""

    expression: ClausePart
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class MatchClause:
    """A parsed clause; names of variables are in lower case, with their labels in `pattern`."""

    place: MatchPlace
    partition: tuple[ClausePart, ...]
    order: tuple[OrderPart, ...]
    measures: tuple[tuple[str, ClausePart], ...]
    rows: RowsPerMatch
    skip: SkipKind
    skip_to: str | None
    pattern: ParsedPattern
    pattern_text: str
    within: ClausePart | None
    timeouts: bool
    subsets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    conditions: dict[str, ClausePart] = field(default_factory=dict)
    prefixes: tuple[Prefixed, ...] = ()

    def variables(self, name: str) -> frozenset[str] | None:
        """Return the labels of a variable, or of the variables of a subset; None for an unknown name."""
        known = self.pattern.variables
        if name.lower() in known:
            return frozenset({known[name.lower()]})
        members = self.subsets.get(name.lower())
        return None if members is None else frozenset(known[m] for m in members)


class _Located(Words):
    """Words whose errors point at the whole text that contains the query."""

    def __init__(self, query: QueryText) -> None:
        super().__init__(query.text)
        self._query = query

    def error(
        self, message: str, *, hint: str | None = None, at: Word | None = None, **facts: Any
    ) -> StatementError:
        word = at or self.next
        return pointed(self._query, word.start, word.end, message, hint, **facts)


def pointed(
    query: QueryText, start: int, end: int, message: str, hint: str | None = None, /, **facts: Any
) -> StatementError:
    """Return an error that underlines characters start..end of a query's text."""
    text = query.source or query.text
    return pointing(text, query.start + start, query.start + end, message, hint=hint, **facts)


def read_match(query: QueryText, place: MatchPlace) -> MatchClause:
    """Parse the clause at a place of a query."""
    return _Reader(query, place).clause()


class _Reader:
    def __init__(self, query: QueryText, place: MatchPlace) -> None:
        self._words = _Located(query)
        while self._words.next.start < place.start:
            self._words.take()
        self._query = query
        self._place = place
        self._prefixes: list[Prefixed] = []

    def clause(self) -> MatchClause:
        words = self._words
        words.expect("MATCH_RECOGNIZE", "(")
        first = words.next
        partition = self._partition() if words.accept("PARTITION", "BY") else ()
        if not words.accept("ORDER", "BY"):
            words.fail(
                "MATCH_RECOGNIZE needs ORDER BY",
                at=words.next if partition else first,
                hint="MATCH_RECOGNIZE ([PARTITION BY customer] ORDER BY at ...",
                reason="not-ordered",
            )
        order = self._ordering()
        measures = self._measures() if words.accept("MEASURES") else ()
        rows = self._rows()
        skip, skip_to = self._skip()
        pattern, text = self._pattern(rows)
        within, timeouts = self._within()
        subsets = self._subsets(pattern) if words.accept("SUBSET") else {}
        conditions = self._conditions(pattern, subsets) if words.accept("DEFINE") else {}
        self._end()
        kind = self._skip_target(skip, skip_to, pattern, subsets)
        return MatchClause(
            self._place,
            partition,
            order,
            measures,
            rows,
            kind,
            None if skip_to is None else skip_to.text.lower(),
            pattern,
            text,
            within,
            timeouts,
            subsets,
            conditions,
            tuple(self._prefixes),
        )

    # --- parts -----------------------------------------------------------------------------------------------------

    def _partition(self) -> tuple[ClausePart, ...]:
        parts = [self._until_part()]
        while self._words.accept(","):
            parts.append(self._until_part())
        return tuple(parts)

    def _ordering(self) -> tuple[OrderPart, ...]:
        parts = []
        while True:
            whole = self._read_expression(
                lambda: self._is_part() or self._words.next.is_("ASC", "DESC", "NULLS")
            )
            descending = self._words.accept("DESC")
            if not descending:
                self._words.accept("ASC")
            nulls_first = not descending
            if self._words.accept("NULLS"):
                nulls_first = self._words.accept("FIRST")
                if not nulls_first:
                    self._words.expect("LAST")
            parts.append(OrderPart(whole, descending, nulls_first))
            if not self._words.accept(","):
                return tuple(parts)

    def _measures(self) -> tuple[tuple[str, ClausePart], ...]:
        measures: dict[str, tuple[str, ClausePart]] = {}
        while True:
            start = self._words.next
            expression = self._read_expression(lambda: self._words.next.is_("AS") or self._is_part())
            if not self._words.accept("AS"):
                self._words.fail(
                    "a measure needs a name",
                    at=start,
                    hint="MEASURES last(B.price) AS lowest",
                    reason="measure-without-name",
                )
            name = self._words.name("the name of the measure")
            if name.text.lower() in measures:
                self._words.fail(
                    f"there are two measures named {name.text!r}",
                    at=name,
                    reason="measure-twice",
                    measure=name.text,
                )
            measures[name.text.lower()] = (name.text, expression)
            if not self._words.accept(","):
                return tuple(measures.values())

    def _rows(self) -> RowsPerMatch:
        words = self._words
        if words.accept("ONE", "ROW", "PER", "MATCH"):
            return "one"
        if not words.accept("ALL", "ROWS", "PER", "MATCH"):
            return "one"
        return next((kind for said, kind in _ROWS.items() if words.accept(*said)), "all")

    def _skip(self) -> tuple[SkipKind, Word | None]:
        words = self._words
        if not words.accept("AFTER", "MATCH"):
            return "past last row", None
        words.expect("SKIP", hint="AFTER MATCH SKIP PAST LAST ROW")
        if words.accept("PAST", "LAST", "ROW"):
            return "past last row", None
        if words.accept("TO", "NEXT", "ROW"):
            return "to next row", None
        words.expect(
            "TO", hint="AFTER MATCH SKIP PAST LAST ROW, TO NEXT ROW, TO FIRST variable or TO LAST variable"
        )
        kind: SkipKind = "to last"
        if (
            words.next.is_("FIRST", "LAST")
            and words.ahead(1).is_name
            and not words.ahead(1).is_("PATTERN", "INITIAL")
        ):
            kind = "to first" if words.take().is_("FIRST") else "to last"
        return kind, words.name("a variable of the pattern")

    def _skip_target(
        self, kind: SkipKind, to: Word | None, pattern: ParsedPattern, subsets: dict[str, tuple[str, ...]]
    ) -> SkipKind:
        if to is not None and to.text.lower() not in {*pattern.variables, *subsets}:
            self._unknown(to, pattern)
        return kind

    def _pattern(self, rows: RowsPerMatch) -> tuple[ParsedPattern, str]:
        words = self._words
        if words.next.is_("SEEK"):
            words.fail(
                "SEEK is not supported: a match can begin at any row",
                hint="leave it out, or write INITIAL",
                reason="seek",
            )
        words.accept("INITIAL")
        if not (words.next.is_("PATTERN") and words.ahead(1).is_("(")):
            words.fail(
                f"expected PATTERN, found {shown(words.next)}",
                hint="parts come in this order: PARTITION BY, ORDER BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, AFTER MATCH "
                "SKIP, PATTERN, WITHIN, SUBSET, DEFINE",
                expected="PATTERN",
                found=words.next.text,
            )
        words.take()
        opened = words.take()
        depth = 1
        while depth:
            word = words.take()
            depth += word.is_("(") - word.is_(")")
        pattern = read_pattern(words.text, opened.end, word.start, self._fail)
        if pattern.excludes is not None and rows == "all, with unmatched":
            self._fail(
                *pattern.excludes,
                "WITH UNMATCHED ROWS and an exclusion cannot be combined: excluded rows are neither matched nor unmatched",
                "leave one of the two out",
                "unmatched-with-exclusion",
            )
        return pattern, " ".join(words.text[opened.end : word.start].split())

    def _within(self) -> tuple[ClausePart | None, bool]:
        words = self._words
        within = None
        if words.accept("WITHIN"):
            within = self._read_expression(lambda: words.next.is_("SUBSET", "DEFINE", "EMIT", ")"))
        emit = words.next
        timeouts = words.accept("EMIT", "TIMEOUTS")
        if timeouts and within is None:
            words.fail(
                "EMIT TIMEOUTS needs WITHIN: without it no match times out",
                at=emit,
                hint="PATTERN (...) WITHIN INTERVAL 30 MINUTES EMIT TIMEOUTS",
                reason="timeouts-without-within",
            )
        return within, timeouts

    def _subsets(self, pattern: ParsedPattern) -> dict[str, tuple[str, ...]]:
        words = self._words
        subsets: dict[str, tuple[str, ...]] = {}
        while True:
            name = words.name("the name of the subset")
            if name.text.lower() in {*pattern.variables, *subsets}:
                words.fail(
                    f"{name.text!r} is already a variable of the pattern or a subset",
                    at=name,
                    hint="give the subset another name",
                    reason="subset-exists",
                )
            words.expect("=", hint=f"SUBSET {name.text} = (A, B)")
            words.expect("(", hint=f"SUBSET {name.text} = (A, B)")
            members: list[str] = []
            while not members or words.accept(","):
                member = words.name("a variable of the pattern")
                if member.text.lower() not in pattern.variables:
                    self._unknown(member, pattern)
                members.append(member.text.lower())
            words.expect(")")
            subsets[name.text.lower()] = tuple(dict.fromkeys(members))
            if not words.accept(","):
                return subsets

    def _conditions(
        self, pattern: ParsedPattern, subsets: dict[str, tuple[str, ...]]
    ) -> dict[str, ClausePart]:
        words = self._words
        conditions: dict[str, ClausePart] = {}
        while True:
            name = words.name("a variable of the pattern")
            if name.text.lower() in subsets:
                words.fail(
                    f"{name.text!r} is a subset; DEFINE takes variables of the pattern",
                    at=name,
                    hint="define the variables of the subset",
                    reason="subset-defined",
                )
            if name.text.lower() not in pattern.variables:
                self._unknown(name, pattern)
            if name.text.lower() in conditions:
                words.fail(
                    f"{name.text!r} is defined twice",
                    at=name,
                    hint="combine the conditions with AND",
                    reason="defined-twice",
                    variable=name.text,
                )
            words.expect("AS", hint=f"DEFINE {name.text} AS price > 10")
            conditions[name.text.lower()] = self._read_expression(lambda: words.next.is_(",", ")"))
            if not words.accept(","):
                return conditions

    def _end(self) -> None:
        words = self._words
        if words.next.is_(
            "PARTITION", "ORDER", "MEASURES", "ONE", "ALL", "AFTER", "WITHIN", "SUBSET", "EMIT"
        ):
            words.fail(
                f"{words.next.text.upper()} is in the wrong place",
                hint="parts come in this order: PARTITION BY, ORDER BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, AFTER MATCH "
                "SKIP, PATTERN, WITHIN, SUBSET, DEFINE",
                reason="clause-order",
            )
        words.expect(")")

    # --- words -----------------------------------------------------------------------------------------------------

    def _is_part(self) -> bool:
        words = self._words
        return words.next.is_(",", ")") or any(
            all(words.ahead(i).is_(k) for i, k in enumerate(said)) for said in _PARTS
        )

    def _until_part(self) -> ClausePart:
        return self._read_expression(self._is_part)

    def _read_expression(self, is_over: Callable[[], bool]) -> ClausePart:
        """Return an expression: the words up to the first one, outside of brackets, that ends it."""
        words = self._words
        first = words.next
        depth, last = 0, first
        while not words.at_end() and (depth or not is_over()):
            last = words.take()
            depth += last.is_(*_OPENING) - last.is_(*_CLOSING)
            if last.is_("RUNNING", "FINAL") and words.next.is_name and words.ahead(1).is_("("):
                self._prefixes.append(Prefixed(last.start, last.end, words.next.start, last.is_("FINAL")))
        if last is first and (words.next is first or not first.text):
            words.fail(
                f"expected an expression, found {shown(words.next)}",
                expected="an expression",
                found=words.next.text,
            )
        return ClausePart(first.start, last.end)

    def _unknown(self, name: Word, pattern: ParsedPattern) -> NoReturn:
        known = ", ".join(pattern.variables.values())
        self._words.fail(
            f"the pattern has no variable {name.text!r}",
            at=name,
            hint=f"variables: {known}",
            reason="unknown-variable",
            variable=name.text,
        )

    def _fail(self, start: int, end: int, message: str, hint: str | None, reason: str) -> NoReturn:
        raise pointed(self._query, start, end, message, hint, reason=reason)
