"""Whose values the columns of a view are: which of them are made of private ones, and which says the subject. Proven from the graph alone.

A `Subject` stands for the value of one subject column in one mention of a topic. A column *tells* subjects whose value it is, unchanged,
in every row, and is *of* those whose private values it may be made of. Where a row is made of several, values that are not
provably of one of them are of a subject that no column tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.queries import graph as g


@dataclass(frozen=True, eq=False)
class Subject:
    """One that is like no other: `column` of `topic` names it, nothing does where values are of several."""

    topic: str | None = None
    column: str | None = None


Subjects = frozenset[Subject]
NOBODY: Subjects = frozenset()


@dataclass(frozen=True)
class Origin:
    """What is known of a column."""

    of: Subjects = NOBODY
    tells: Subjects = NOBODY


PLAIN = Origin()
Origins = tuple[Origin, ...]


@dataclass(frozen=True)
class Tracer:
    """Follows columns through a graph. `of_source` knows those of a topic or view, anew for each mention; `reads` the input columns
    of expressions."""

    of_source: Callable[[g.Source], Origins]
    reads: Callable[[Sequence[g.Expression]], Iterable[int]]

    def origins(self, node: g.Node) -> Origins:
        """What is known of each column that a node gives."""
        below = [self.origins(child) for child in node.inputs]
        match node:
            case g.Source():
                return self.of_source(node)
            case g.Constant():
                return (PLAIN,) * len(node.schema)
            case g.Map():
                return self._mapped(node, below[0])
            case g.Union():
                return _either(below)
            case g.Aggregate() | g.SessionAggregate():
                return _aggregated(node, below[0])
            case g.Fold():
                keys = tuple(below[0][column] for column in node.key)
                state = _of_group(_all_of(below[0]), keys)
                return (*keys, *(state,) * (len(node.schema) - len(keys)))
            case g.Join():
                return _joined(node, below[0], below[1])
            case g.Close():
                return below[0][: len(node.schema)]
            case g.Rank() | g.Versions():  # a number, or when the next record of the key begins
                return (*below[0], *(PLAIN,) * (len(node.schema) - len(below[0])))
            case g.Slide():
                return _slid(node, below[0])
            case g.Sessions():
                key = [below[0][column] for column in node.key]
                return _replaced(below[0], node.column, _of_group(below[0][node.column].of, key))
            case _:
                return _unknown(node.schema, below)

    def _mapped(self, node: g.Map, given: Origins) -> Origins:
        now = given
        for step in node.steps:
            match step:
                case g.Filter():
                    pass
                case g.Project(expressions) | g.Replicate(_, expressions):
                    now = self._projected(expressions, now)
                case g.Expand(projections):
                    now = _either([self._projected(each, now) for each in projections])
                case g.Call():
                    now = (*now, Origin(_all_of(now[c] for c in self.reads(step.args))))
                case _:
                    return _unknown(node.schema, [given])
        return now

    def _projected(self, expressions: Sequence[g.Expression], given: Origins) -> Origins:
        return tuple(
            given[e.column] if e.column is not None else Origin(_all_of(given[c] for c in self.reads([e])))
            for e in expressions
        )


def _all_of(origins: Iterable[Origin]) -> Subjects:
    return frozenset(subject for origin in origins for subject in origin.of)


def _of_group(subjects: Subjects, key: Iterable[Origin]) -> Origin:
    """Values of any rows that agree on a key: they are of one subject if the key tells it."""
    told = frozenset(subject for origin in key for subject in origin.tells)
    return Origin(subjects if subjects <= told else frozenset({Subject()}))


def _aggregated(node: g.Aggregate | g.SessionAggregate, given: Origins) -> Origins:
    keys = given[: node.keys]
    customs = node.customs if isinstance(node, g.Aggregate) else ()
    buffers = len(node.schema) - node.keys - len(customs)
    read = [f.args if f.filter is None else (*f.args, f.filter) for f in node.functions]
    if buffers != len(read):  # some have several, and it is not told here which
        read = [tuple(column for columns in read for column in columns)] * buffers
    read += [custom.args for custom in customs]
    return (*keys, *(_of_group(_all_of(given[c] for c in columns), keys) for columns in read))


def _slid(node: g.Slide, given: Origins) -> Origins:
    """Every row, and what rows of its key make of it."""
    more = _of_group(_all_of(given), [given[column] for column in node.key])
    return (*given, *(more,) * (len(node.schema) - len(given)))


def _joined(join: g.Join, left: Origins, right: Origins) -> Origins:
    if join.kind in ("semi", "anti", "existence"):
        return (*left, *(PLAIN,) * (len(join.schema) - len(left)))
    # Where both sides are there their keys are equal; where one is not, its private values are NULL.
    for one, other in zip(join.left_key, join.right_key, strict=True):
        both = left[one].tells | right[other].tells
        if join.kind in ("inner", "left"):
            left = _replaced(left, one, Origin(left[one].of, both))
        if join.kind in ("inner", "right"):
            right = _replaced(right, other, Origin(right[other].of, both))
    return (*left, *right)


def _either(branches: Sequence[Origins]) -> Origins:
    """Rows of one branch or another: a column tells the subject of another if it does so in every branch."""
    found = [PLAIN] * len(branches[0])
    for place in range(len(found)):
        of = [branch[place].of for branch in branches]
        if any(of):
            subject = next((s for subjects in of for s in subjects), Subject())
            mine = frozenset({Subject(subject.topic, subject.column)})
            found[place] = Origin(mine, found[place].tells)
            for other in range(len(found)):
                if all(
                    subjects <= branch[other].tells for subjects, branch in zip(of, branches, strict=True)
                ):
                    found[other] = Origin(found[other].of, found[other].tells | mine)
    return tuple(found)


def _unknown(schema: pa.Schema, below: Iterable[Origins]) -> Origins:
    hides = any(origin.of for origins in below for origin in origins)
    return (Origin(frozenset({Subject()})) if hides else PLAIN,) * len(schema)


def _replaced(origins: Origins, place: int, by: Origin) -> Origins:
    return (*origins[:place], by, *origins[place + 1 :])


@dataclass(frozen=True)
class Private:
    """A column that is made of private values: the column that says whose, None if none provably does."""

    column: int
    by: int | None
    subjects: tuple[Subject, ...]


def private_columns(origins: Origins, prefer: Iterable[int] = ()) -> list[Private]:
    """The columns that are made of private values, each with its subject's: of several, one of `prefer`."""
    order = list(dict.fromkeys((*prefer, *range(len(origins)))))
    found = []
    for column, origin in enumerate(origins):
        if origin.of:
            by = next((c for c in order if not origins[c].of and origin.of <= origins[c].tells), None)
            found.append(Private(column, by, tuple(origin.of)))
    return found
