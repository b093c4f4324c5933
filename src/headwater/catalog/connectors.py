"""What sources, sinks and alerts are declared to be: what they connect to, and with which options.

A value that stands in the environment is looked up when it is needed, and is in no document; what is shown of options has
no passwords in it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from headwater.catalog.connector_kinds import SINK_KINDS, SOURCE_KINDS
from headwater.catalog.rules import NAME
from headwater.core.clock import Microseconds, format_span
from headwater.core.errors import NewerVersionError, SchemaError, UsageError
from headwater.core.types import quote

FORMAT = 1
SOURCE, SINK, ALERT = "source", "sink", "alert"
"""The kinds of their entries in the catalog."""
DELETION = "deletion"
"""The kind of the entries that say how far a deletion is."""

SOURCE_OPTIONS = {name: kind.options for name, kind in SOURCE_KINDS.items()}
"""The options of each kind of source; the first is the one that it cannot do without."""
SINK_OPTIONS = {name: kind.options for name, kind in SINK_KINDS.items()}
"""The options of each kind of sink."""
SOURCE_SETTABLE = {name: kind.settable for name, kind in SOURCE_KINDS.items()}
"""What ALTER SOURCE may change: it goes on from where it is. The others say what it is."""
SINK_SETTABLE = {name: kind.settable for name, kind in SINK_KINDS.items()}
"""What ALTER SINK may change: none of it says which rows are where, and in which form."""
ALERT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "webhook": ("url", "secret", "previous_secret", "token", "timeout"),
    "email": ("to", "host", "port", "from", "starttls", "user", "password", "timeout"),
    "topic": ("topic",),
}
"""The options of each kind of notice; the first is the one that it cannot do without."""
_NEEDED = ("url", "topic", "function")
"""Options that a source or sink which has them cannot do without."""

_SECRET = ("password", "secret", "token")
_NAMED_SECRET = r"[\w.-]*(?:password|secret|token|credential|signature|key)[\w.-]*"
_HIDDEN = re.compile(
    r"(?P<url>//[^/@:\s]*:)[^/\s]*(?=@)"  # up to the last @ of the authority: a password may have one in it
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
    """A URL, a connection string or JSON as it may be shown."""
    return _HIDDEN.sub(lambda m: f"{m['url'] or m['query'] or m['json'] or m['name']}***", text)


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
    private: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Of a sink into TOPIC: the columns that come from private ones, each with its subject's, found out when it was made."""

    @classmethod
    def from_document(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_document` wrote."""
        made = super().from_document(plain)
        return dataclasses.replace(made, private=tuple((column, by) for column, by in made.private))

    def to_sql(self) -> str:
        """The statement that makes it, without passwords."""
        what = f"{quote(self.name)} FROM {quote(self.view)} INTO {self.kind.upper()}"
        return f"CREATE SINK {what}{_with(self.shown())}"


@dataclass(frozen=True)
class AlertDefinition(_Connection):
    """CREATE ALERT: what is watched, for what, how long, and who is told; `kind` is that of the notice."""

    on: str
    """The name of a view or a metric."""
    metric: bool
    labels: Mapping[str, str]
    """Of a metric: the labels that a figure must have."""
    condition: str
    held_us: Microseconds = 0
    """So long it must hold without a break."""
    key: tuple[str, ...] = field(default=(), compare=False)
    """Of a view: what tells its rows apart, found out when it was made; () where it is watched as a whole."""
    incarnation: int = field(default=0, compare=False)
    """Tells it from one of its name that was dropped."""

    @property
    def subject(self) -> str:
        """What is watched, as SQL writes it."""
        if not self.metric:
            return quote(self.on)
        chosen = ", ".join(f"{name} = {_shown('', value)}" for name, value in self.labels.items())
        return f"METRIC {self.on}" + (f"{{{chosen}}}" if chosen else "")

    def to_sql(self) -> str:
        """The statement that makes it, without passwords."""
        held = f" FOR '{format_span(self.held_us)}'" if self.held_us else ""
        what = f"{quote(self.name)} ON {self.subject} WHEN {self.condition}{held}"
        return f"CREATE ALERT {what} NOTIFY {self.kind.upper()}{_with(self.shown())}"


def check_alert(made: AlertDefinition) -> None:
    """SchemaError if an alert is declared to be what none can be."""
    if not NAME.match(made.name):
        raise SchemaError(
            f"{made.name!r} cannot be the name of an alert",
            hint="use letters, digits and underscores, not starting with a digit",
        )
    needed = ALERT_OPTIONS[made.kind][:2] if made.kind == "email" else ALERT_OPTIONS[made.kind][:1]
    for name in needed:
        if made.options.get(name) is None:
            raise SchemaError(
                f"alert {made.name!r} says nothing of its {name}", hint=f"WITH ({name} = '...', ...)"
            )
    if made.kind == "topic" and not isinstance(made.options["topic"], str):
        raise SchemaError(f"the topic of alert {made.name!r} is a text", hint="topic = 'alarms'")
    refuse_written_secrets(made, ("secret", "previous_secret", "token", "password"))


def refuse_written_secrets(made: _Connection, names: tuple[str, ...]) -> None:
    """SchemaError if one of these options stands there itself, and is not looked up in the environment."""
    what = {SourceDefinition: "source", SinkDefinition: "sink", AlertDefinition: "alert"}[type(made)]
    for name in names:
        if not isinstance(made.options.get(name), EnvValue | None):
            raise SchemaError(
                f"the {name} of {what} {made.name!r} would stand in the catalog for all to read",
                hint=f"{name} = env('NAME') leaves it in the environment",
            )


def altered_alert(made: AlertDefinition, options: Options) -> AlertDefinition:
    """An alert that tells somebody else, or in another way of the same kind; NULL takes an option away."""
    for name in options:
        if name not in ALERT_OPTIONS[made.kind]:
            raise UsageError(
                f"{name!r} is not an option of a notice by {made.kind}",
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
    """SchemaError if a source or sink is declared to be what none can be; its options are its own to judge."""
    is_source = isinstance(made, SourceDefinition)
    what, known = ("source", SOURCE_OPTIONS) if is_source else ("sink", SINK_OPTIONS)
    if not NAME.match(made.name):
        raise SchemaError(
            f"{made.name!r} cannot be the name of a {what}",
            hint="use letters, digits and underscores, not starting with a digit",
        )
    if is_source and made.kind == "webhook":
        refuse_written_secrets(made, ("secret", "previous_secret"))
    needed = known[made.kind][0]
    if made.options.get(needed) is None and (is_source or needed in _NEEDED):
        raise SchemaError(
            f"{what} {made.name!r} says nothing of its {needed}", hint=f"WITH ({needed} = '...', ...)"
        )


Made = TypeVar("Made", SourceDefinition, SinkDefinition)


def altered(made: Made, options: Options) -> Made:
    """A declaration with other options, of which NULL takes one away; UsageError for what only CREATE OR REPLACE changes."""
    is_source = isinstance(made, SourceDefinition)
    what, known = ("source", SOURCE_OPTIONS) if is_source else ("sink", SINK_OPTIONS)
    settable = (SOURCE_SETTABLE if is_source else SINK_SETTABLE)[made.kind]
    for name in options:
        if name not in known[made.kind]:
            raise UsageError(
                f"{name!r} is not an option of a {made.kind} {what}",
                hint=f"ALTER {what.upper()} can set {', '.join(settable)}",
            )
        if name not in settable:
            again = replace(made, options=_without_null({**made.options, **options})).to_sql()
            raise UsageError(
                f"{name} of {what} {made.name!r} is fixed: with another one it would be another {what}",
                detail=f"ALTER {what.upper()} can set {', '.join(settable)}",
                hint=again.replace("CREATE", "CREATE OR REPLACE", 1),
            )
    changed = replace(made, options=_without_null({**made.options, **options}))
    check_connection(changed)
    return changed


def _without_null(options: Options) -> Options:
    return {name: value for name, value in options.items() if value is not None}


def difference(old: _Connection, new: _Connection) -> list[str]:
    """What differs between two declarations, a line each; empty where they are the same."""
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
