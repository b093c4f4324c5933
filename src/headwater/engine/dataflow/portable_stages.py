"""Stages in a form that travels: what a task on another machine needs to run a stage, without graph, specs or JVM.

Only stages of keyed operators whose linear operators are all evaluated on Arrow have this form. The linear operators are
pickled by value, because they are functions made of functions.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from headwater.engine.dataflow.operator_interface import Operator
    from headwater.operators.zset.runs import Key


class NotPortableError(pickle.PicklingError):
    """A part of a stage exists in this process only. It never reaches users: the stage then runs here."""


@dataclass(frozen=True)
class PortableInput:
    """An input of a stage: a topic or view, of which some columns are read, or the output of an earlier stage."""

    place: int
    schema: pa.Schema
    columns: tuple[int, ...] | None = None
    """Indices of the columns that are read of a topic or view; None: the rows are taken as they are."""
    hidden: tuple[str, ...] = ()
    """Names of the metadata columns that are read after them."""
    used: tuple[int, ...] | None = None
    """Indices, in the schema, of the columns that expressions use; None: of all. The others are NULL for the stage."""

    def names(self, own: Sequence[str]) -> list[str]:
        """Return the columns to read of a topic with these columns."""
        names = [*(own[i] for i in self.columns or ()), *self.hidden]
        return names if self.used is None else [names[i] for i in self.used]


@dataclass(frozen=True)
class PortableOperator:
    """A linear operator of a stage, with the places of the operators that it reads."""

    place: int
    inputs: tuple[int, ...]
    operator: Operator
    schema: pa.Schema


@dataclass(frozen=True)
class PortableStage:
    """The program of a stage up to its keyed operator, which is pickled by itself."""

    inputs: tuple[PortableInput, ...]
    linear: tuple[PortableOperator, ...]
    given: tuple[int, ...]
    """Places of the operators that the keyed operator reads."""
    keys: tuple[Key, ...]
    """The exchange key of each input of the keyed operator, as column indices."""

    @cached_property
    def given_schemas(self) -> list[pa.Schema]:
        """The schema of each input of the keyed operator."""
        schemas = {each.place: each.schema for each in self.inputs}
        schemas |= {each.place: each.schema for each in self.linear}
        return [schemas[place] for place in self.given]

    @cached_property
    def pickled(self) -> bytes | None:
        """The stage as bytes; None if a part of it exists in this process only."""
        from pyspark.cloudpickle import dumps

        try:
            return bytes(dumps((self.inputs, self.linear, self.given, self.keys)))  # type: ignore[no-untyped-call]
        except (pickle.PicklingError, TypeError, AttributeError):
            return None

    @classmethod
    def unpickled(cls, data: bytes) -> PortableStage:
        """Return the stage that `pickled` has serialised."""
        return cls(*pickle.loads(data))
