"""What is declared outside, by name: sources, sinks and alerts are made, found and refused alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from headwater.catalog.connectors import AlertDefinition, SinkDefinition, SourceDefinition, difference
from headwater.core.errors import HeadwaterError
from headwater.log.protocol import Entry, Log
from headwater.sql.statements import CreateAlert, CreateSink, CreateSource

Definition = TypeVar("Definition", bound=SourceDefinition | SinkDefinition | AlertDefinition)


class ConnectorDeclarations(Generic[Definition]):
    """The entries of one kind in the catalog."""

    def __init__(
        self,
        log: Log,
        kind: str,
        form: Callable[[Mapping[str, Any]], Definition],
        exists: type[HeadwaterError],
        missing: type[HeadwaterError],
    ) -> None:
        self._log = log
        self._kind = kind
        self._form = form
        self._exists = exists
        self._missing = missing

    def all(self) -> Mapping[str, Definition]:
        """What is declared, by name."""
        return {name: self.read(entry) for name, entry in self._log.entries(self._kind).items()}

    def read(self, entry: Entry) -> Definition:
        """What an entry says."""
        return self._form(entry.document)

    def entry(self, name: str) -> Entry:
        """The entry of a name, in any case; an error that names what there is if there is none."""
        found = self._log.entries(self._kind).get(name)
        if found is not None:
            return found
        known = ", ".join(self._log.entries(self._kind))
        hint = f"there are {known}" if known else f"CREATE {self._kind.upper()} makes one"
        raise self._missing(f"there is no {self._kind} {name!r}", hint=hint, **{self._kind: name})

    def is_new(self, statement: CreateSource | CreateSink | CreateAlert) -> bool:
        """Whether a CREATE has something to make; an error, with the difference, if it is there already and not to be
        replaced."""
        made = statement.definition
        existing = self._log.entries(self._kind).get(made.name)
        if existing is None:
            return True
        was = self.read(existing)
        if statement.if_not_exists:
            return False
        if statement.or_replace:
            return was != made
        changes = difference(was, made)
        statement_of = f"CREATE OR REPLACE {self._kind.upper()} changes it"
        raise self._exists(
            f"{self._kind} {was.name!r} is there already" + (", and differs" if changes else ""),
            detail="\n    ".join(changes) or None,
            hint=statement_of if changes else f"CREATE {self._kind.upper()} IF NOT EXISTS leaves it as it is",
            difference=changes,
            **{self._kind: was.name},
        )

    def put(self, made: Definition, read: Entry | None = None) -> None:
        """Declare it, in place of one of its name: of `read`, where what is declared was made from that. ConflictError if
        somebody else has declared another meanwhile."""
        existing = self._log.entries(self._kind).get(made.name) if read is None else read
        expect = None if existing is None else existing.sequence
        self._log.put_entry(self._kind, made.name, made.to_document(), expect=expect)
