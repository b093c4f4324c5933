"""A row pattern as an automaton: positions that each consume one row, and their possible successors by preference.

Positions are the variables of the expanded pattern, with quantifiers and permutations unrolled. Successors are computed
from a program of splits, as for regular expressions: the positions reachable without consuming a row, each once, in
order of preference. So a loop iteration that consumes no row, and would repeat for ever, is the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.errors import EvaluationError
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
    variables,
)

PLACES_MAX = 5_000
"""Maximum number of variables of an expanded pattern."""

Options = tuple[int, ...]
"""Possible next positions, most preferred first; ACCEPT ends the match and is always the last option."""

ACCEPT = -1


@dataclass(frozen=True, eq=False)
class Automaton:
    """Positions by number. Options depend on whether the boundary between rows is the end of the partition."""

    labels: tuple[int, ...]
    """Variable of each position, by number."""
    excluded: tuple[bool, ...]
    """Whether the row of each position is excluded from the output."""
    first: tuple[tuple[Options, Options], tuple[Options, Options]]
    """Options at the start of a match: indexed by whether it is before the first row, then whether it is after the last."""
    follow: tuple[tuple[Options, Options], ...]
    """Options after each position: indexed by whether its row is the last of the partition."""
    has_end: bool
    """Whether the pattern depends on the end of its partition."""

    def __len__(self) -> int:
        return len(self.labels)


def compile_pattern(pattern: Pattern, text: str) -> Automaton:
    """Compile a pattern into an automaton; `text` is used in errors.

    Raises EvaluationError if the expanded pattern is too long.
    """
    program = _Program(pattern, text)
    program.add(pattern, excluded=False)
    program.add_accept()
    return program.automaton()


@dataclass(frozen=True)
class _Take:
    """Consumes a row."""

    place: int


@dataclass(frozen=True)
class _Split:
    """Continues at the first instruction or, with lower preference, at the second."""

    first: int
    second: int


@dataclass(frozen=True)
class _Anchor:
    """Continues if the boundary is the start, or the end, of the partition."""

    end: bool


@dataclass(frozen=True)
class _Accept:
    """Completes the match."""


_Instruction = _Take | _Split | _Anchor | _Accept


class _Program:
    def __init__(self, pattern: Pattern, text: str) -> None:
        self._numbers = {name: number for number, name in enumerate(variables(pattern))}
        self._text = text
        self._code: list[_Instruction] = []
        self._labels: list[int] = []
        self._excluded: list[bool] = []
        self._after: list[int] = []

    def add(self, pattern: Pattern, *, excluded: bool) -> None:
        match pattern:
            case Variable(name):
                self._take(self._numbers[name], excluded)
            case Start() | End():
                self._code.append(_Anchor(isinstance(pattern, End)))
            case Concat(parts):
                for part in parts:
                    self.add(part, excluded=excluded)
            case Alternate(parts):
                self._alternate(parts, excluded)
            case Permute():
                self.add(pattern.expanded(), excluded=excluded)
            case Exclude(part):
                self.add(part, excluded=True)
            case Quantified():
                self._quantified(pattern, excluded)
            case Empty():
                pass

    def add_accept(self) -> None:
        self._code.append(_Accept())

    def _take(self, label: int, excluded: bool) -> None:
        if len(self._labels) == PLACES_MAX:
            raise EvaluationError(
                f"the pattern {self._text} is too long",
                detail=f"its quantifiers and PERMUTE expand to more than {PLACES_MAX} variables",
                hint="use smaller bounds in its quantifiers, or fewer variables in PERMUTE",
                reason="pattern-too-long",
                pattern=self._text,
            )
        self._code.append(_Take(len(self._labels)))
        self._labels.append(label)
        self._excluded.append(excluded)
        self._after.append(len(self._code))

    def _alternate(self, parts: tuple[Pattern, ...], excluded: bool) -> None:
        jumps = []
        for part in parts[:-1]:
            split = self._hole()
            self.add(part, excluded=excluded)
            jumps.append(self._hole())
            self._code[split] = _Split(split + 1, len(self._code))
        self.add(parts[-1], excluded=excluded)
        for jump in jumps:
            self._code[jump] = _Split(len(self._code), len(self._code))

    def _quantified(self, quantified: Quantified, excluded: bool) -> None:
        low, high, greedy = quantified.low, quantified.high, quantified.greedy
        looping = len(self._code)
        for _ in range(low):
            looping = len(self._code)
            self.add(quantified.part, excluded=excluded)
        if high is None:
            begin = self._hole() if not low else None
            if not low:
                looping = len(self._code)
                self.add(quantified.part, excluded=excluded)
            after = len(self._code) + 1
            self._code.append(_split(looping, after, greedy=greedy))
            if begin is not None:
                self._code[begin] = _split(looping, after, greedy=greedy)
            return
        splits = []
        for _ in range(high - low):
            splits.append(self._hole())
            self.add(quantified.part, excluded=excluded)
        for split in splits:
            self._code[split] = _split(split + 1, len(self._code), greedy=greedy)

    def _hole(self) -> int:
        """Reserve an instruction to be filled in later; return its index."""
        self._code.append(_Accept())
        return len(self._code) - 1

    def automaton(self) -> Automaton:
        def both(begin: int, start: bool) -> tuple[Options, Options]:
            return self._options(begin, start=start, end=False), self._options(begin, start=start, end=True)

        return Automaton(
            tuple(self._labels),
            tuple(self._excluded),
            (both(0, start=False), both(0, start=True)),
            tuple(both(after, start=False) for after in self._after),
            any(isinstance(each, _Anchor) and each.end for each in self._code),
        )

    def _options(self, begin: int, *, start: bool, end: bool) -> Options:
        """Return the positions reachable from an instruction without consuming a row, most preferred first."""
        found: list[int] = []
        seen: set[int] = set()
        stack = [begin]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            match self._code[at]:
                case _Take(place):
                    found.append(place)
                case _Split(first, second):
                    stack += (second, first)
                case _Anchor(is_end):
                    if end if is_end else start:
                        stack.append(at + 1)
                case _Accept():
                    found.append(ACCEPT)
                    break
        return tuple(found)


def _split(into: int, past: int, *, greedy: bool) -> _Split:
    return _Split(into, past) if greedy else _Split(past, into)
