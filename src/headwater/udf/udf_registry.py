"""The functions of a workspace: their declarations in its log, and the code that this process has for them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.core.errors import ConflictError, FunctionMissingError, UsageError
from headwater.log.protocol import Log
from headwater.udf.udf_definitions import FUNCTION, FunctionDefinition, names_in

ATTEMPTS_MAX = 100
"""Maximum number of attempts at a declaration that conflicts with concurrent ones."""


class Functions:
    """Declarations of functions by all processes, and the functions that this process can call."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._code: dict[str, tuple[FunctionDefinition, Any]] = {}
        self._known: tuple[object, dict[str, FunctionDefinition]] = ((), {})
        self._guard = threading.RLock()

    def declared(self) -> dict[str, FunctionDefinition]:
        """Return every function of the workspace, by its name in lower case."""
        entries = self.log.entries(FUNCTION)
        stamp = tuple((name, entry.sequence) for name, entry in entries.items())
        with self._guard:
            if self._known[0] != stamp:
                made = (FunctionDefinition.from_document(e.document) for e in entries.values())
                self._known = (stamp, {d.name.lower(): d for d in made})
            return self._known[1]

    def used(self, query: str) -> dict[str, FunctionDefinition]:
        """Return the functions whose names occur in a query, by name in lower case; may include functions that are not
        called."""
        return _used(query, self.declared())

    @staticmethod
    def signatures(query: str, declared: Mapping[str, FunctionDefinition]) -> tuple[str, ...]:
        """Return the signatures of the functions that a query uses: a change of these changes the query's plan."""
        return tuple(d.signature for d in _used(query, declared).values())

    def require(self, query: str) -> None:
        """Raise FunctionMissingError if this process has no code for a function that a query names."""
        for definition in self.used(query).values():
            self.code(definition)

    def declare(self, definition: FunctionDefinition, code: Any) -> FunctionDefinition | None:
        """Declare a function, with its code; return the replaced definition, if there is one and it differs."""
        replaced = self._put(definition)
        with self._guard:
            self._code[definition.name.lower()] = (definition, code)
        return replaced

    def _put(self, definition: FunctionDefinition) -> FunctionDefinition | None:
        document = definition.to_document()
        for _ in range(ATTEMPTS_MAX):
            entry = self.log.entries(FUNCTION).get(definition.name)
            if entry is not None and entry.document == document:
                return None
            then = None if entry is None else FunctionDefinition.from_document(entry.document)
            if then is not None and then.kind != definition.kind:
                raise UsageError(
                    f"{definition.name!r} is already declared with {then.method}",
                    hint="choose another name",
                    function=definition.name,
                    reason="other-kind",
                )
            try:
                self.log.put_entry(
                    FUNCTION, definition.name, document, expect=None if entry is None else entry.sequence
                )
                return then
            except ConflictError:
                continue
        raise ConflictError(
            f"function {definition.name!r} was not declared: other processes declared it {ATTEMPTS_MAX} times meanwhile",
            hint="declare it again",
            function=definition.name,
        )

    def restore(self, definition: FunctionDefinition) -> None:
        """Undo a declaration: restore the previous definition, without code in this process."""
        self._put(definition)
        with self._guard:
            self._code.pop(definition.name.lower(), None)

    def here(self) -> list[str]:
        """Return the names of the functions for which this process has the code of the current declaration."""
        declared = self.declared()
        with self._guard:
            return [d.name for name, (d, _) in self._code.items() if declared.get(name) == d]

    def code(self, definition: FunctionDefinition) -> Any:
        """Return the code of a function; raises FunctionMissingError if this process has none, or code of another version."""
        with self._guard:
            mine = self._code.get(definition.name.lower())
        if mine is not None and mine[0].signature == definition.signature:
            return mine[1]
        wrong = (
            "is not declared in this process"
            if mine is None
            else f"is declared differently by another process (this process has version {mine[0].version})"
        )
        raise FunctionMissingError(
            f"function {definition.name!r} {wrong}: declare it with {definition.method}, "
            f"version {definition.version}, before the views that use it are run",
            detail=f"it is declared as {definition.signature}",
            function=definition.name,
            version=definition.version,
        )


def _used(query: str, declared: Mapping[str, FunctionDefinition]) -> dict[str, FunctionDefinition]:
    if not declared:
        return {}
    return {name: declared[name] for name in sorted(names_in(query) & declared.keys())}


@dataclass(frozen=True)
class BoundCall:
    """A scalar or table function in an operator graph; its code is looked up when it is called."""

    functions: Functions
    definition: FunctionDefinition
    texts: tuple[str, ...]

    def __call__(self, arguments: Sequence[pa.Array]) -> pa.Array:
        """Return the values for rows of arguments."""
        values: pa.Array = self.functions.code(self.definition)(arguments, self.texts)
        return values
