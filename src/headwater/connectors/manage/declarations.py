"""Catalog declarations of sources, sinks and alerts by name: created, found and rejected alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from headwater.catalog.connectors import AlertDefinition, SinkDefinition, SourceDefinition, difference
from headwater.core.errors import HeadwaterError
from headwater.log.protocol import Entry, Log
from headwater.sql.statements import CreateAlert, CreateSink, CreateSource

Definition = TypeVar("Definition", bound=SourceDefinition | SinkDefinition | AlertDefinition)


class ConnectorDeclarations(Generic[Definition]):
    """The catalog entries of one kind of connector."""

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
        """Return the declared connectors, by name."""
        return {name: self.read(entry) for name, entry in self._log.entries(self._kind).items()}

    def read(self, entry: Entry) -> Definition:
        """Return the definition in an entry."""
        return self._form(entry.document)

    def entry(self, name: str) -> Entry:
        """Return the entry of a name, in any case; if it is missing, raise an error that lists the existing names."""
        found = self._log.entries(self._kind).get(name)
        if found is not None:
            return found
        known = ", ".join(self._log.entries(self._kind))
        hint = f"there are {known}" if known else f"CREATE {self._kind.upper()} creates one"
        raise self._missing(f"there is no {self._kind} {name!r}", hint=hint, **{self._kind: name})

    def is_new(self, statement: CreateSource | CreateSink | CreateAlert) -> bool:
        """Whether a CREATE has something to create; an error, with the differences, if the name exists and is not to be
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
            f"{self._kind} {was.name!r} already exists" + (" with another definition" if changes else ""),
            detail="\n    ".join(changes) or None,
            hint=statement_of
            if changes
            else f"CREATE {self._kind.upper()} IF NOT EXISTS leaves it unchanged",
            difference=changes,
            **{self._kind: was.name},
        )

    def put(self, made: Definition, read: Entry | None = None) -> None:
        """Declare a connector, in place of one of its name: of the entry `read` if the definition was derived from that.
        ConflictError if another one was declared meanwhile."""
        existing = self._log.entries(self._kind).get(made.name) if read is None else read
        expect = None if existing is None else existing.sequence
        self._log.put_entry(self._kind, made.name, made.to_document(), expect=expect)
