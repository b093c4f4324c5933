"""Matching as its rules are written: backtracking over the rows of one partition, slow and obvious.

A path is the variables that the rows from the start of a match on are mapped to, each with whether the row is excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.operators.match_recognize.pattern import (
    Alternate,
    Concat,
    Empty,
    End,
    Exclude,
    Pattern,
    Permute,
    Quantified,
    Start,
    Variable,
)
from headwater.operators.match_recognize.spec import (
    Classify,
    Input,
    MatchNumber,
    MatchSpec,
    Navigate,
    PatternAggregate,
)

Path = tuple[tuple[str, bool], ...]
Row = tuple[Any, ...]
Function = Callable[..., Any]
"""Of the values of an expression's inputs."""


@dataclass(frozen=True)
class Match:
    """A match of one partition; or, if it is not complete, what there is of one that ran out of time."""

    start: int
    path: Path
    number: int
    complete: bool = True


class SkipError(Exception):
    """There is no row to skip to, or it is the one that the match starts at."""


@dataclass
class Partition:
    """The rows of a partition in order, and what is looked for in them."""

    spec: MatchSpec
    functions: Sequence[Function]
    rows: Sequence[Row]
    start: int = 0
    """Of the match that is looked for."""
    number: int = 1
    open: list[Path] = field(default_factory=list)
    """Paths that would have gone on when there was no row in time, the preferred first."""

    def matches(self) -> list[Match]:
        """All matches."""
        found: list[Match] = []
        while self.start < len(self.rows):
            path = self._preferred()
            if path is None:
                if self.spec.timeouts and self.open:
                    found.append(Match(self.start, self.open[0], self.number, complete=False))
                self.start += 1
                continue
            found.append(Match(self.start, path, self.number))
            self.number += 1
            self.start = self._next(path)
        return found

    def _preferred(self) -> Path | None:
        self.open = []
        return next(self._paths(self.spec.pattern, ()), None)

    def _next(self, path: Path) -> int:
        skip, start = self.spec.skip, self.start
        if not path or skip.kind == "to next row":
            return start + 1
        if skip.kind == "past last row":
            return start + len(path)
        mapped = [start + i for i, (name, _) in enumerate(path) if name in (skip.variables or ())]
        if not mapped or (target := mapped[0] if skip.kind == "to first" else mapped[-1]) == start:
            raise SkipError
        return target

    def _holds(self, path: Path, name: str) -> bool:
        """Whether the row after a path can be mapped to a variable."""
        at, within = self.start + len(path), self.spec.within
        late = (
            within is not None and at < len(self.rows) and self._time(at) - self._time(self.start) >= within
        )
        if at >= len(self.rows) or late:
            if path:
                self.open.append(path)
            return False
        longer = (*path, (name, False))
        return all(
            self.value(number, self.start, longer, len(longer), self.number) is True
            for number in self.spec.conditions.get(name, ())
        )

    def _time(self, row: int) -> int:
        assert self.spec.time is not None
        return int(self.rows[row][self.spec.time])

    def _paths(self, pattern: Pattern, path: Path, *, excluded: bool = False) -> Iterator[Path]:
        """All ways in which a pattern goes on from a path, the preferred first; some may come more than once."""

        def within(part: Pattern, before: Path) -> Iterator[Path]:
            return self._paths(part, before, excluded=excluded)

        def optional(part: Pattern, before: Path, times: int, *, greedy: bool) -> Iterator[Path]:
            if not greedy:
                yield before
            if times:
                for one in within(part, before):
                    yield from optional(part, one, times - 1, greedy=greedy)
            if greedy:
                yield before

        def loop(part: Pattern, before: Path, *, greedy: bool) -> Iterator[Path]:
            """A part any number of times; once it takes no row, no more."""
            if not greedy:
                yield before
            for one in within(part, before):
                yield from [one] if len(one) == len(before) else loop(part, one, greedy=greedy)
            if greedy:
                yield before

        match pattern:
            case Variable(name):
                if self._holds(path, name):
                    yield (*path, (name, excluded))
            case Empty() | Concat(()):
                yield path
            case Start():
                if self.start + len(path) == 0:
                    yield path
            case End():
                if self.start + len(path) == len(self.rows):
                    yield path
            case Concat(parts):
                for one in within(parts[0], path):
                    yield from within(Concat(parts[1:]), one)
            case Alternate(parts):
                for part in parts:
                    yield from within(part, path)
            case Permute():
                yield from within(pattern.expanded(), path)
            case Exclude(part):
                yield from self._paths(part, path, excluded=True)
            case Quantified(part, 0, None, greedy):
                yield from loop(part, path, greedy=greedy)
            case Quantified(part, 0, high, greedy):
                yield from optional(part, path, high or 0, greedy=greedy)
            case Quantified(part, low, high, greedy):
                rest = Empty() if high == 1 else Quantified(part, low - 1, high and high - 1, greedy)
                for one in within(part, path):
                    yield from within(rest, one)

    def value(self, expression: int, start: int, path: Path, upto: int, number: int) -> Any:
        """An expression after so many rows of a match."""
        inputs = self.spec.expressions[expression].inputs
        values = [value for each in inputs for value in self._input(each, start, path, upto, number)]
        return self.functions[expression](*values)

    def _input(self, each: Input, start: int, path: Path, upto: int, number: int) -> list[Any]:
        if isinstance(each, MatchNumber):
            return [number]
        seen = path if each.final else path[:upto]
        mapped = [i for i, (name, _) in enumerate(seen) if each.variables is None or name in each.variables]
        if isinstance(each, PatternAggregate):
            return self._aggregate(each, [(self.rows[start + i], path[i][0], number) for i in mapped])
        if each.nth >= len(mapped):
            return [None]
        at = (mapped[each.nth] if each.side == "first" else mapped[-1 - each.nth]) + each.offset
        if isinstance(each, Classify):
            return [path[at][0] if 0 <= at < len(path) else None]
        assert isinstance(each, Navigate)
        return [self.rows[start + at][each.column] if 0 <= start + at < len(self.rows) else None]

    def _aggregate(self, each: PatternAggregate, rows: Sequence[tuple[Row, str, int]]) -> list[Any]:
        if each.argument is None:
            return [len(rows)]
        values = []
        for row, label, number in rows:
            given = [
                row[i.column] if isinstance(i, Navigate) else label if isinstance(i, Classify) else number
                for i in self.spec.expressions[each.argument].inputs
            ]
            values.append(self.functions[each.argument](*given))
        if each.kind == "list":
            return [values]
        values = [value for value in values if value is not None]
        match each.kind:
            case "count":
                return [len(values)]
            case "avg":
                return [float(sum(values)), len(values)]
            case "sum":
                return [sum(values) if values else None]
            case "min":
                return [min(values, default=None)]
        return [max(values, default=None)]

    def output(self) -> list[Row]:
        """The rows that are shown, without the times at which they are final."""
        spec, made = self.spec, []
        matched: set[int] = set()
        for match in self.matches():
            if match.complete:
                matched |= {match.start, *range(match.start, match.start + len(match.path))}
            if spec.rows == "one":
                made.append(self._shown(match.start, match, len(match.path)))
                continue
            if not match.path and spec.rows != "all, omit empty":
                made.append(self._shown(match.start, match, 0))
            for i, (_, excluded) in enumerate(match.path):
                if not excluded:
                    made.append(self._shown(match.start + i, match, i + 1))
        if spec.rows == "all, with unmatched":
            made += [self._shown(row, None, 0) for row in range(len(self.rows)) if row not in matched]
        return made

    def _shown(self, row: int, match: Match | None, upto: int) -> Row:
        measures = [
            None if match is None else self.value(number, match.start, match.path, upto, match.number)
            for number in self.spec.measures
        ]
        values: dict[str, Callable[[int], Any]] = {
            "column": lambda number: self.rows[row][number],
            "measure": lambda number: measures[number],
            "timed out": lambda _: match is not None and not match.complete,
        }
        return tuple(values[shown.what](shown.number) for shown in self.spec.shown)
