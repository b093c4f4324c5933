"""What sources and sinks are declared to be: what they connect to, and with which options.

A value that stands in the environment is looked up when it is needed, and is in no document; what is shown of options has
no passwords in it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headwater.errors import NewerVersionError, SchemaError, UsageError
from headwater.rules import NAME
from headwater.types import quote

FORMAT = 1
SOURCE, SINK = "source", "sink"
"""The kinds of their entries in the catalog."""

SOURCE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "postgres": (
        "url",
        "tables",
        "slot",
        "publication",
        "snapshot",
        "failover",
        "max_wal",
        "over_wal",
        "outbox",
        "outbox_prefix",
        "chunk_rows",
        "types",
    ),
    "files": (
        "path",
        "topic",
        "format",
        "columns",
        "key",
        "pattern",
        "header",
        "delimiter",
        "null",
        "multiline",
        "time_format",
        "extra",
        "on_error",
        "settle",
    ),
    "python": ("class", "options", "every"),
}
"""The options of each kind of source; the first is the one that it cannot do without."""
SINK_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "postgres": ("url", "table", "key", "mode", "adopt", "on_error"),
    "redis": ("url", "key", "as", "prefix", "score", "member", "adopt", "on_error"),
    "search": ("path", "key", "text", "language", "adopt", "on_error"),
    "lake": ("warehouse", "table", "key", "mode", "catalog", "file_rows", "snapshots", "adopt", "on_error"),
    "parquet": ("path", "key", "mode", "adopt", "on_error"),
    "topic": ("topic", "key", "mode", "partitions", "durability", "cleanup", "adopt", "on_error"),
    "webhook": ("url", "key", "mode", "secret", "token", "timeout", "rows", "on_error"),
    "python": ("function", "key", "mode", "rows", "on_error"),
}
"""The options of each kind of sink."""
_NEEDED = ("url", "topic", "function")
"""Options that a source or sink which has them cannot do without."""

_SECRET = ("password", "secret", "token")
_PASSWORD = re.compile(r"(?P<before>//[^/@:\s]*:)[^@\s]*(?=@)|(?P<name>\bpassword\s*=\s*)('[^']*'|\S+)")


@dataclass(frozen=True)
class EnvValue:
    """`env('NAME')`: a value that stays in the environment until it is needed."""

    name: str

    def resolve(self, environ: Mapping[str, str] = os.environ) -> str:
        """The value; UsageError if the variable is not set."""
        if self.name not in environ:
            raise UsageError(
                f"the environment variable {self.name} is not set",
                hint=f"export {self.name}=... and run it again",
            )
        return environ[self.name]


Options = Mapping[str, Any]
"""WITH options by name: text, numbers, booleans, None for NULL, or an EnvValue."""


def resolve(options: Options, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Options with every `env(...)` looked up."""
    return {k: v.resolve(environ) if isinstance(v, EnvValue) else v for k, v in options.items()}


def without_password(text: str) -> str:
    """A URL or connection string as it may be shown."""
    return _PASSWORD.sub(lambda m: f"{m['before'] or m['name']}***", text)


@dataclass(frozen=True)
class _Connection:
    name: str
    kind: str
    options: Options

    def resolved(self, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """The options, with what stands in the environment looked up."""
        return resolve(self.options, environ)

    def shown(self) -> dict[str, str]:
        """The options as SQL shows them, without what nobody is to see."""
        return {name: _shown(name, value) for name, value in self.options.items()}

    def to_document(self) -> dict[str, Any]:
        """A plain form that `from_document` reads back."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}
        options = {k: {"env": v.name} if isinstance(v, EnvValue) else v for k, v in self.options.items()}
        return {"format": FORMAT, **plain, "options": options}

    @classmethod
    def from_document(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_document` wrote."""
        if plain["format"] > FORMAT:
            raise NewerVersionError(
                f"{plain['name']!r} was declared by a newer version of Headwater", hint="upgrade Headwater"
            )
        given = plain["options"].items()
        options = {k: EnvValue(v["env"]) if isinstance(v, dict) else v for k, v in given}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        del values["format"]
        return cls(**{**values, "options": options})


@dataclass(frozen=True)
class SourceDefinition(_Connection):
    """CREATE SOURCE: what topics are filled from."""

    generation: int = field(default=0, compare=False)
    """How often it was begun anew."""

    def to_sql(self) -> str:
        """The statement that makes it, without passwords."""
        return f"CREATE SOURCE {quote(self.name)} FROM {self.kind.upper()}{_with(self.shown())}"


@dataclass(frozen=True)
class SinkDefinition(_Connection):
    """CREATE SINK: what follows a view."""

    view: str
    key: tuple[str, ...] = field(default=(), compare=False)
    """What rows are replaced and deleted by, found out when it was made; () where they only come."""

    def to_sql(self) -> str:
        """The statement that makes it, without passwords."""
        what = f"{quote(self.name)} FROM {quote(self.view)} INTO {self.kind.upper()}"
        return f"CREATE SINK {what}{_with(self.shown())}"


def _with(options: Mapping[str, str]) -> str:
    return f" WITH ({', '.join(f'{name} = {value}' for name, value in options.items())})" if options else ""


def _shown(name: str, value: Any) -> str:
    if isinstance(value, EnvValue):
        return f"env('{value.name}')"
    if any(word in name for word in _SECRET):
        return "'***'"
    if isinstance(value, str):
        return "'" + without_password(value).replace("'", "''") + "'"
    return "NULL" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def check_connection(made: SourceDefinition | SinkDefinition) -> None:
    """SchemaError if a source or sink is declared to be what none can be; its options are its own to judge."""
    is_source = isinstance(made, SourceDefinition)
    what, known = ("source", SOURCE_OPTIONS) if is_source else ("sink", SINK_OPTIONS)
    if not NAME.match(made.name):
        raise SchemaError(
            f"{made.name!r} cannot be the name of a {what}",
            hint="use letters, digits and underscores, not starting with a digit",
        )
    needed = known[made.kind][0]
    if made.options.get(needed) is None and (is_source or needed in _NEEDED):
        raise SchemaError(
            f"{what} {made.name!r} says nothing of its {needed}", hint=f"WITH ({needed} = '...', ...)"
        )


def difference(old: _Connection, new: _Connection) -> list[str]:
    """What differs between two declarations, a line each; empty where they are the same."""
    lines = []
    facts = [("view", getattr(old, "view", ""), getattr(new, "view", "")), ("kind", old.kind, new.kind)]
    was, now = old.shown(), new.shown()
    facts += [(name, was.get(name, ""), now.get(name, "")) for name in {**was, **now}]
    for name, before, after in facts:
        if before != after:
            signed = (("-", before), ("+", after))
            lines += [f"{sign} {name} = {value}" for sign, value in signed if value]
    if not lines and old.options != new.options:
        lines += ["- another password", "+ the password given"]
    return lines
