"""Whose values a column is: whether it is made of private ones, and whether it says the subject.

A `Subject` stands for the value of one subject column in one mention of a topic. A column *tells* subjects whose value it is, unchanged,
in every row, and is *of* those whose private values it may be made of. Where a row is made of several, values that are not
provably of one of them are of a subject that no column tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, eq=False)
class Subject:
    """One that is like no other: `column` of `topic` names it, nothing does where values are of several."""

    topic: str | None = None
    column: str | None = None


Subjects = frozenset[Subject]
NOBODY: Subjects = frozenset()


@dataclass(frozen=True)
class ColumnOrigin:
    """What is known of a column."""

    of: Subjects = NOBODY
    tells: Subjects = NOBODY


PLAIN = ColumnOrigin()
Origins = tuple[ColumnOrigin, ...]


def all_of(origins: Iterable[ColumnOrigin]) -> Subjects:
    """The subjects of whose values any of some columns is made."""
    return frozenset(subject for origin in origins for subject in origin.of)


def of_group(subjects: Subjects, key: Iterable[ColumnOrigin]) -> ColumnOrigin:
    """Values of any rows that agree on a key: they are of one subject if the key tells it."""
    told = frozenset(subject for origin in key for subject in origin.tells)
    return ColumnOrigin(subjects if subjects <= told else frozenset({Subject()}))


def either(branches: Sequence[Origins]) -> Origins:
    """Rows of one branch or another: a column tells the subject of another if it does so in every branch."""
    found = [PLAIN] * len(branches[0])
    for place in range(len(found)):
        of = [branch[place].of for branch in branches]
        if any(of):
            subject = next((s for subjects in of for s in subjects), Subject())
            mine = frozenset({Subject(subject.topic, subject.column)})
            found[place] = ColumnOrigin(mine, found[place].tells)
            for other in range(len(found)):
                if all(
                    subjects <= branch[other].tells for subjects, branch in zip(of, branches, strict=True)
                ):
                    found[other] = ColumnOrigin(found[other].of, found[other].tells | mine)
    return tuple(found)


def unknown(schema: pa.Schema, below: Iterable[Origins]) -> Origins:
    """Columns that may be made of any value of the inputs."""
    hides = any(origin.of for origins in below for origin in origins)
    return (ColumnOrigin(frozenset({Subject()})) if hides else PLAIN,) * len(schema)


def replaced(origins: Origins, place: int, by: ColumnOrigin) -> Origins:
    """The same with another origin of one column."""
    return (*origins[:place], by, *origins[place + 1 :])
