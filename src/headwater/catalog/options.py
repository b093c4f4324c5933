"""Options of WITH (...), each with its type, its default and its meaning, as the reference in docs/reference shows them.

Only the declarations; values are parsed and checked by the modules that use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

REQUIRED = "required"
"""Default of an option that must be given."""


@dataclass(frozen=True)
class Option:
    """An option that a statement, a queue or the Spark data source accepts."""

    name: str
    type: str
    """A word such as 'text', 'span' or 'columns'; or the possible values as SQL literals, separated by ' | '."""
    default: str
    """The default as a SQL literal, a phrase that says where it comes from, 'none' or 'required'."""
    meaning: str
    """What the option does, in one or two sentences."""
    settable: bool = False
    """Whether ALTER ... SET may change the option."""


def names_of(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the names of options, in order."""
    return tuple(option.name for option in options)


def settable_of(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the names of the options that ALTER ... SET may change, in order."""
    return tuple(option.name for option in options if option.settable)
