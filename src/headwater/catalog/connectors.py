"""Declarations of sources, sinks and alerts: their targets and options.

A value from the environment is looked up when it is needed, and is not stored in the catalog; options are displayed without
passwords.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from headwater.catalog import sink_options
from headwater.catalog.connector_kinds import SINK_KINDS, SOURCE_KINDS
from headwater.catalog.options import names_of, settable_of
from headwater.catalog.rules import NAME
from headwater.core.clock import Microseconds, format_span
from headwater.core.errors import NewerVersionError, SchemaError, UsageError
from headwater.core.types import quote

FORMAT = 1
SOURCE, SINK, ALERT = "source", "sink", "alert"
"""Kinds of their entries in the catalog."""
DELETION = "deletion"
"""Kind of the catalog entries with the progress of a deletion."""

SOURCE_OPTIONS = {name: names_of(kind.options) for name, kind in SOURCE_KINDS.items()}
"""Options of each kind of source; the first is required."""
SINK_OPTIONS = {name: names_of(kind.options) for name, kind in SINK_KINDS.items()}
"""Options of each kind of sink."""
SOURCE_SETTABLE = {name: settable_of(kind.options) for name, kind in SOURCE_KINDS.items()}
"""Options that ALTER SOURCE may change while the source continues from its position. The others define its identity."""
SINK_SETTABLE = {name: settable_of(kind.options) for name, kind in SINK_KINDS.items()}
"""Options that ALTER SINK may change: they do not affect the location or the form of the target's rows."""
NOTIFICATIONS = {
    "webhook": sink_options.NOTIFY_WEBHOOK,
    "email": sink_options.NOTIFY_EMAIL,
    "topic": sink_options.NOTIFY_TOPIC,
}
"""Options of each kind of notification, as declared."""
ALERT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    kind: names_of(options) for kind, options in NOTIFICATIONS.items()
}
"""Options of each kind of notification; the first is required."""
_NEEDED = ("url", "topic", "function")
"""Required options among the first options of sink kinds."""

_SECRET = ("password", "secret", "token")
_NAMED_SECRET = r"[\w.-]*(?:password|secret|token|credential|signature|key)[\w.-]*"
_HIDDEN = re.compile(
    r"(?P<url>//[^/@:\s]*:)[^/\s]*(?=@)"  # up to the last @ of the authority: a password may contain one
    rf"|(?P<query>[?&]{_NAMED_SECRET}=)[^&\s'#]*"
    rf'|(?P<json>"{_NAMED_SECRET}"\s*:\s*)"(?:[^"\\]|\\.)*"'
    r"|(?P<name>\bpassword\s*=\s*)('[^']*'|\S+)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class EnvValue:
    """`env('NAME')`: a value that stays in the environment until it is needed."""

    name: str

    def resolve(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the value; UsageError if the variable is not set."""
        if self.name not in environ:
            raise UsageError(
                f"the environment variable {self.name} is not set",
                hint=f"export {self.name}=... and run it again",
                variable=self.name,
            )
        return environ[self.name]


Options = Mapping[str, Any]
"""WITH options by name: text, numbers, booleans, None for NULL, or an EnvValue."""


def resolve(options: Options, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return options with every `env(...)` looked up."""
    return {k: v.resolve(environ) if isinstance(v, EnvValue) else v for k, v in options.items()}


def without_password(text: str) -> str:
    """Return a URL, a connection string or JSON with its secrets masked."""
    return _HIDDEN.sub(lambda m: f"{m['url'] or m['query'] or m['json'] or m['name']}***", text)


@dataclass(frozen=True)
class _Connection:
    name: str
    kind: str
    options: Options

    def resolved(self, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the options with values from the environment looked up."""
        return resolve(self.options, environ)

    def shown(self) -> dict[str, str]:
        """Return the options as SQL shows them, with secrets masked."""
        return {name: _shown(name, value) for name, value in self.options.items()}

    def to_document(self) -> dict[str, Any]:
        """Return a plain form that `from_document` reads back."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}
        options = {k: {"env": v.name} if isinstance(v, EnvValue) else v for k, v in self.options.items()}
        return {"format": FORMAT, **plain, "options": options}

    @classmethod
    def from_document(cls, plain: Mapping[str, Any]) -> Self:
        """Return the declaration that `to_document` wrote."""
        if plain["format"] > FORMAT:
            raise NewerVersionError(
                f"{plain['name']!r} was declared by a newer version of Headwater",
                hint="upgrade Headwater: pip install -U headwater",
                found=plain["format"],
                supported=FORMAT,
            )
        given = plain["options"].items()
        options = {k: EnvValue(v["env"]) if isinstance(v, dict) else v for k, v in given}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        del values["format"]
        return cls(**{**values, "options": options})


@dataclass(frozen=True)
class SourceDefinition(_Connection):
    """CREATE SOURCE: the source that fills topics."""

    generation: int = field(default=0, compare=False)
    """Number of times that the source was restarted from the beginning."""

    def to_sql(self) -> str:
        """Return the CREATE SOURCE statement of the declaration, without passwords."""
        return f"CREATE SOURCE {quote(self.name)} FROM {self.kind.upper()}{_with(self.shown())}"


@dataclass(frozen=True)
class SinkDefinition(_Connection):
    """CREATE SINK: the sink that follows a view."""

    view: str
    key: tuple[str, ...] = field(default=(), compare=False)
    """Columns by which rows are replaced and deleted, determined at creation; () if rows are only appended."""
    private: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """For a sink into TOPIC: the columns derived from private ones, each with its subject column, determined at creation."""

    @classmethod
    def from_document(cls, plain: Mapping[str, Any]) -> Self:
        """Return the declaration that `to_document` wrote."""
        made = super().from_document(plain)
        return dataclasses.replace(made, private=tuple((column, by) for column, by in made.private))

    def to_sql(self) -> str:
        """Return the CREATE SINK statement of the declaration, without passwords."""
        what = f"{quote(self.name)} FROM {quote(self.view)} INTO {self.kind.upper()}"
        return f"CREATE SINK {what}{_with(self.shown())}"


@dataclass(frozen=True)
class AlertDefinition(_Connection):
    """CREATE ALERT: the watched view or metric, the condition, its duration, and the notification, whose kind is `kind`."""

    on: str
    """Name of a view or a metric."""
    metric: bool
    labels: Mapping[str, str]
    """For a metric: the labels that a sample must have."""
    condition: str
    held_us: Microseconds = 0
    """Time for which the condition must hold without interruption."""
    key: tuple[str, ...] = field(default=(), compare=False)
    """For a view: the key columns of its rows, determined at creation; () if it is watched as a whole."""
    incarnation: int = field(default=0, compare=False)
    """Number that distinguishes the alert from a dropped one of the same name."""

    @property
    def subject(self) -> str:
        """The watched view or metric, as SQL writes it."""
        if not self.metric:
            return quote(self.on)
        chosen = ", ".join(f"{name} = {_shown('', value)}" for name, value in self.labels.items())
        return f"METRIC {self.on}" + (f"{{{chosen}}}" if chosen else "")

    def to_sql(self) -> str:
        """Return the CREATE ALERT statement of the declaration, without passwords."""
        held = f" FOR '{format_span(self.held_us)}'" if self.held_us else ""
        what = f"{quote(self.name)} ON {self.subject} WHEN {self.condition}{held}"
        return f"CREATE ALERT {what} NOTIFY {self.kind.upper()}{_with(self.shown())}"


def check_alert(made: AlertDefinition) -> None:
    """Raise SchemaError if the declaration of an alert is invalid."""
    if not NAME.match(made.name):
        raise SchemaError(
            f"{made.name!r} cannot be the name of an alert",
            hint="use letters, digits and underscores, not starting with a digit",
            alert=made.name,
            reason="invalid-name",
        )
    needed = ALERT_OPTIONS[made.kind][:2] if made.kind == "email" else ALERT_OPTIONS[made.kind][:1]
    for name in needed:
        if made.options.get(name) is None:
            raise SchemaError(
                f"alert {made.name!r} needs the option {name}",
                hint=f"WITH ({name} = '...', ...)",
                alert=made.name,
                option=name,
                reason="missing-option",
            )
    if made.kind == "topic" and not isinstance(made.options["topic"], str):
        raise SchemaError(
            f"the option topic of alert {made.name!r} must be a string",
            hint="topic = 'alarms'",
            alert=made.name,
            option="topic",
            reason="not-a-string",
        )
    refuse_written_secrets(made, ("secret", "previous_secret", "token", "password"))


def refuse_written_secrets(made: _Connection, names: tuple[str, ...]) -> None:
    """Raise SchemaError if one of these options is written literally instead of looked up in the environment."""
    what = {SourceDefinition: "source", SinkDefinition: "sink", AlertDefinition: "alert"}[type(made)]
    for name in names:
        if not isinstance(made.options.get(name), EnvValue | None):
            raise SchemaError(
                f"the {name} of {what} {made.name!r} would be stored in the catalog in plain text",
                hint=f"{name} = env('NAME') reads it from the environment",
                option=name,
                reason="plain-secret",
            )


def altered_alert(made: AlertDefinition, options: Options) -> AlertDefinition:
    """Return an alert with other options of the same kind of notification; NULL removes an option."""
    for name in options:
        if name not in ALERT_OPTIONS[made.kind]:
            raise UsageError(
                f"{name!r} is not an option of an alert that notifies by {made.kind}",
                option=name,
                reason="unknown-option",
                hint=f"ALTER ALERT can set {', '.join(ALERT_OPTIONS[made.kind])}; CREATE OR REPLACE ALERT changes the rest",
            )
    changed = replace(made, options=_without_null({**made.options, **options}))
    check_alert(changed)
    return changed


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
    """Raise SchemaError if the declaration of a source or sink is invalid; the connector itself checks its options."""
    is_source = isinstance(made, SourceDefinition)
    what, known = ("source", SOURCE_OPTIONS) if is_source else ("sink", SINK_OPTIONS)
    if not NAME.match(made.name):
        raise SchemaError(
            f"{made.name!r} cannot be the name of a {what}",
            hint="use letters, digits and underscores, not starting with a digit",
            reason="invalid-name",
        )
    if is_source and made.kind == "webhook":
        refuse_written_secrets(made, ("secret", "previous_secret"))
    needed = known[made.kind][0]
    if made.options.get(needed) is None and (is_source or needed in _NEEDED):
        raise SchemaError(
            f"{what} {made.name!r} needs the option {needed}",
            hint=f"WITH ({needed} = '...', ...)",
            option=needed,
            reason="missing-option",
        )


Made = TypeVar("Made", SourceDefinition, SinkDefinition)


def altered(made: Made, options: Options) -> Made:
    """Return a declaration with other options, where NULL removes one; UsageError for options that only CREATE OR REPLACE
    changes."""
    is_source = isinstance(made, SourceDefinition)
    what, known = ("source", SOURCE_OPTIONS) if is_source else ("sink", SINK_OPTIONS)
    settable = (SOURCE_SETTABLE if is_source else SINK_SETTABLE)[made.kind]
    for name in options:
        if name not in known[made.kind]:
            raise UsageError(
                f"{name!r} is not an option of a {made.kind} {what}",
                hint=f"ALTER {what.upper()} can set {', '.join(settable)}",
                option=name,
                reason="unknown-option",
            )
        if name not in settable:
            again = replace(made, options=_without_null({**made.options, **options})).to_sql()
            raise UsageError(
                f"{name} of {what} {made.name!r} cannot be changed",
                option=name,
                reason="fixed-option",
                detail=f"ALTER {what.upper()} can set {', '.join(settable)}",
                hint=again.replace("CREATE", "CREATE OR REPLACE", 1),
            )
    changed = replace(made, options=_without_null({**made.options, **options}))
    check_connection(changed)
    return changed


def _without_null(options: Options) -> Options:
    return {name: value for name, value in options.items() if value is not None}


def difference(old: _Connection, new: _Connection) -> list[str]:
    """Return the differences between two declarations as lines; empty if they are equal."""
    lines = []
    facts = [("view", getattr(old, "view", ""), getattr(new, "view", "")), ("kind", old.kind, new.kind)]
    if isinstance(old, AlertDefinition) and isinstance(new, AlertDefinition):
        facts += [("on", old.subject, new.subject), ("when", old.condition, new.condition)]
        facts += [("for", format_span(old.held_us), format_span(new.held_us))]
    was, now = old.shown(), new.shown()
    facts += [(name, was.get(name, ""), now.get(name, "")) for name in {**was, **now}]
    for name, before, after in facts:
        if before != after:
            signed = (("-", before), ("+", after))
            lines += [f"{sign} {name} = {value}" for sign, value in signed if value]
    if not lines and old.options != new.options:
        lines += ["- another password", "+ the password given"]
    return lines
