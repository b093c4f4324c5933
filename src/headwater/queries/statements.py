"""What statements ask for, as plain values: `parsing` reads them out of text, `headwater.execution` runs them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.catalog import TopicDefinition, define_topic
from headwater.clock import Microseconds
from headwater.errors import UsageError


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


@dataclass(frozen=True)
class Columns:
    """What stands between the parentheses of CREATE TOPIC."""

    schema: pa.Schema
    key: tuple[str, ...] = ()
    time: str | None = None
    lateness_us: Microseconds = 0


@dataclass(frozen=True)
class CreateTopic:
    """CREATE [OR REPLACE] TOPIC [IF NOT EXISTS] name (...) WITH (...)."""

    name: str
    columns: Columns
    options: Options = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False

    def definition(self, environ: Mapping[str, str] = os.environ) -> TopicDefinition:
        """The checked definition, with `env(...)` looked up."""
        c = self.columns
        return define_topic(
            self.name,
            c.schema,
            key=c.key,
            time=c.time,
            lateness=c.lateness_us,
            options=resolve(self.options, environ),
        )


@dataclass(frozen=True)
class AddColumn:
    """ALTER TOPIC name ADD COLUMN c type [NOT NULL]."""

    topic: str
    column: pa.Field


@dataclass(frozen=True)
class WidenColumn:
    """ALTER TOPIC name ALTER COLUMN c TYPE type."""

    topic: str
    column: str
    type: pa.DataType


@dataclass(frozen=True)
class DropNotNull:
    """ALTER TOPIC name ALTER COLUMN c DROP NOT NULL."""

    topic: str
    column: str


@dataclass(frozen=True)
class SetOptions:
    """ALTER TOPIC name SET (option = value, ...); NULL takes an option away."""

    topic: str
    options: Options


@dataclass(frozen=True)
class DropTopic:
    """DROP TOPIC [IF EXISTS] name [CASCADE]."""

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class ShowTopics:
    """SHOW TOPICS."""


@dataclass(frozen=True)
class ShowCursors:
    """SHOW CURSORS."""


@dataclass(frozen=True)
class DescribeTopic:
    """DESCRIBE name: its columns."""

    name: str


@dataclass(frozen=True)
class ExplainTopic:
    """EXPLAIN name: everything that is known about it."""

    name: str


Statement = (
    CreateTopic
    | AddColumn
    | WidenColumn
    | DropNotNull
    | SetOptions
    | DropTopic
    | ShowTopics
    | ShowCursors
    | DescribeTopic
    | ExplainTopic
)


def resolve(options: Options, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Options with every `env(...)` looked up."""
    return {k: v.resolve(environ) if isinstance(v, EnvValue) else v for k, v in options.items()}
