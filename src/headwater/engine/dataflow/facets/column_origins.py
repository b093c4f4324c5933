"""Private values in columns: which subjects' values a column may contain, and which columns identify the subject.

A `Subject` represents the value of one subject column in one reference to a topic. A column *identifies* a subject if it
contains that value, unchanged, in every row. A column is *of* the subjects whose private values it may be computed
from. If a row is computed from several rows, values that do not provably belong to one of these subjects belong to a
subject that no column identifies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, eq=False)
class Subject:
    """A subject, compared by identity: identified by `column` of `topic`, or unidentified if values belong to several
    subjects."""

    topic: str | None = None
    column: str | None = None


Subjects = frozenset[Subject]
NOBODY: Subjects = frozenset()


@dataclass(frozen=True)
class ColumnOrigin:
    """Origin of a column: `of` are the subjects with values in the column, `identifies` the subjects identified by the column."""

    of: Subjects = NOBODY
    identifies: Subjects = NOBODY


PLAIN = ColumnOrigin()
Origins = tuple[ColumnOrigin, ...]


def all_of(origins: Iterable[ColumnOrigin]) -> Subjects:
    """Return the subjects whose values any of some columns may contain."""
    return frozenset(subject for origin in origins for subject in origin.of)


def of_group(subjects: Subjects, key: Iterable[ColumnOrigin]) -> ColumnOrigin:
    """Return the origin of a column computed from any rows that agree on a key: it has an identified subject if the key
    identifies it."""
    identified = frozenset(subject for origin in key for subject in origin.identifies)
    return ColumnOrigin(subjects if subjects <= identified else frozenset({Subject()}))


def either(branches: Sequence[Origins]) -> Origins:
    """Return the origins of rows that come from one of several branches; a column identifies a subject if it does in every
    branch."""
    found = [PLAIN] * len(branches[0])
    for place in range(len(found)):
        of = [branch[place].of for branch in branches]
        if any(of):
            subject = next((s for subjects in of for s in subjects), Subject())
            mine = frozenset({Subject(subject.topic, subject.column)})
            found[place] = ColumnOrigin(mine, found[place].identifies)
            for other in range(len(found)):
                if all(
                    subjects <= branch[other].identifies
                    for subjects, branch in zip(of, branches, strict=True)
                ):
                    found[other] = ColumnOrigin(found[other].of, found[other].identifies | mine)
    return tuple(found)


def unknown(schema: pa.Schema, below: Iterable[Origins]) -> Origins:
    """Return the origins of columns that may be computed from any value of the inputs."""
    hides = any(origin.of for origins in below for origin in origins)
    return (ColumnOrigin(frozenset({Subject()})) if hides else PLAIN,) * len(schema)


def replaced(origins: Origins, place: int, by: ColumnOrigin) -> Origins:
    """Return the origins with that of one column replaced."""
    return (*origins[:place], by, *origins[place + 1 :])
