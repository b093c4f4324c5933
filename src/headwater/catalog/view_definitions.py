"""Definitions of views, as statements declare them and as the log stores them."""

from __future__ import annotations

import base64
import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

from headwater.catalog import statement_options
from headwater.catalog.options import names_of
from headwater.catalog.rules import NAME, check_free
from headwater.core.arguments import span_us
from headwater.core.clock import Microseconds, format_span
from headwater.core.errors import NewerVersionError, SchemaError, UsageError
from headwater.core.types import format_type, parse_type, quote

Late = Literal["correct", "divert", "drop"]
OnError = Literal["stop", "divert"]
StateBound = Literal["any", "bounded"]
VIEW_METADATA_COLUMNS = ("_weight", "_tick")
"""Metadata columns of a view's changes."""
VIEW_FORMAT = 1


@dataclass(frozen=True)
class ViewOptions:
    """Options of a view from WITH (...)."""

    late: Late = "correct"
    """Handling of rows that are too late for their window: they correct it, go to `<view>.late`, or are dropped."""
    correct_for_us: Microseconds | None = None
    """How far behind the watermark a late row may still change a result; None is without limit."""
    on_error: OnError = "stop"
    """Handling of a row whose expressions fail: it stops the view, or goes to `<view>.errors`."""
    state: StateBound = "any"
    """State bound: 'any' if state may grow with the records, 'bounded' if it must be bounded by the tables that the view
    reads."""

    def shown(self) -> dict[str, str]:
        """Return the options that differ from the default, as SQL literals."""
        shown = {name: f"'{getattr(self, name)}'" for name in ("late", "on_error", "state")}
        if self.correct_for_us is not None:
            shown["correct_for"] = f"'{format_span(self.correct_for_us)}'"
        usual = {"late": "'correct'", "on_error": "'stop'", "state": "'any'"}
        return {name: value for name, value in shown.items() if usual.get(name) != value}


VIEW_OPTION_NAMES = names_of(statement_options.VIEW)


def view_options(options: Mapping[str, Any]) -> ViewOptions:
    """Return the checked options of a view from WITH (...); NULL is the default."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in VIEW_OPTION_NAMES:
            raise UsageError(
                f"{name!r} is not an option of a view",
                hint=f"the options are {', '.join(VIEW_OPTION_NAMES)}",
                option=name,
                reason="unknown-option",
            )
        if value is None:
            continue
        if name == "correct_for":
            values["correct_for_us"] = span_us(value, name)
            continue
        known = get_args({"late": Late, "on_error": OnError, "state": StateBound}[name])
        if value not in known:
            choice = " or ".join(repr(one) for one in known)
            near = difflib.get_close_matches(str(value).lower(), known, 1) or known
            raise UsageError(
                f"{name} must be {choice}, not {value!r}",
                hint=f"write {name} = '{near[0]}'",
                option=name,
                value=value,
            )
        values[name] = value
    made = ViewOptions(**values)
    if made.correct_for_us is not None and made.late != "correct":
        raise UsageError(
            f"correct_for needs late = 'correct', not late = '{made.late}'",
            detail="correct_for limits how late a row may be and still change the view",
            hint="leave one of the two out",
            option="correct_for",
            reason="not-correct",
        )
    return made


STANDING = "STANDING QUERIES OF "
"""Prefix of the query of a view that matches documents against stored queries (percolator)."""


@dataclass(frozen=True)
class ViewDefinition:
    """Definition of a view. `columns` are those that its query returned at creation, and do not change."""

    name: str
    query: str
    """The SELECT exactly as it was written, without EMIT."""
    columns: pa.Schema
    names: tuple[str, ...] = ()
    """Column list of the CREATE statement, if it had one."""
    options: ViewOptions = ViewOptions()
    emit_on_close: bool = False
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics and views that it reads, with the columns of each at creation: columns added later change nothing."""
    late: pa.Schema | None = None
    """Columns of `<view>.late`, None without one."""
    replayed: Mapping[str, Mapping[int, int]] = field(default_factory=dict, compare=False)
    """By topic and partition, the offset below which late rows were replayed and count as on time."""
    incarnation: int = field(default=0, compare=False)
    """Set by the log: the number of the commit that stored it, which distinguishes it from an earlier view of the same name."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Topics and views that the view reads."""
        return tuple(self.inputs)

    def to_document(self) -> dict[str, Any]:
        """Return a plain form, safe for JSON, that `from_document` reads back. It does not contain the incarnation."""
        return {
            "format": VIEW_FORMAT,
            "name": self.name,
            "query": self.query,
            "columns": _fields_text(self.columns),
            "names": list(self.names),
            "options": dataclasses.asdict(self.options),
            "emit_on_close": self.emit_on_close,
            "inputs": {name: list(columns) for name, columns in self.inputs.items()},
            **({"late": _fields_text(self.late)} if self.late is not None else {}),
            **({"replayed": _by_text(self.replayed)} if self.replayed else {}),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], incarnation: int = 0) -> ViewDefinition:
        """Return the definition that `to_document` wrote; NewerVersionError if a newer version wrote options unknown to this
        one."""
        known = {f.name for f in dataclasses.fields(ViewOptions)}
        unknown = sorted(set(document["options"]) - known)
        if document["format"] > VIEW_FORMAT or unknown:
            raise NewerVersionError(
                f"view {document['name']!r} was created by a newer version of Headwater",
                detail=f"its options have {', '.join(unknown)}" if unknown else None,
                hint="upgrade Headwater: pip install -U headwater",
                found=document["format"],
                supported=VIEW_FORMAT,
                options=sorted(unknown),
            )
        late = document.get("late")
        return cls(
            name=document["name"],
            query=document["query"],
            columns=_text_fields(document["columns"]),
            names=tuple(document["names"]),
            options=ViewOptions(**document["options"]),
            emit_on_close=document["emit_on_close"],
            inputs={name: tuple(columns) for name, columns in document["inputs"].items()},
            late=None if late is None else _text_fields(late),
            replayed={
                topic: {int(p): end for p, end in ends.items()}
                for topic, ends in document.get("replayed", {}).items()
            },
            incarnation=incarnation,
        )

    def to_sql(self) -> str:
        """Return the statement that creates this view: CREATE MATERIALIZED VIEW, or CREATE STANDING QUERY."""
        if self.query.startswith(STANDING):
            stored, _, rest = self.query.removeprefix(STANDING).partition(" ON ")
            if stored != quote(f"{self.name}_queries"):
                begun = rest.removesuffix(")") + ", " if " WITH (" in rest else f"{rest} WITH ("
                rest = f"{begun}queries = '{stored.strip('`')}')"
            return f"CREATE STANDING QUERY {quote(self.name)} ON {rest}"
        head = f"CREATE MATERIALIZED VIEW {quote(self.name)}"
        if self.names:
            head += f" ({', '.join(map(quote, self.names))})"
        if shown := self.options.shown():
            head += f" WITH ({', '.join(f'{name} = {value}' for name, value in shown.items())})"
        return f"{head} AS\n{self.query}" + ("\nEMIT ON WINDOW CLOSE" if self.emit_on_close else "")


def _fields_text(schema: pa.Schema) -> list[list[Any]]:
    return [[f.name, _type_text(f.type), f.nullable] for f in schema]


def _text_fields(fields: Sequence[Sequence[Any]]) -> pa.Schema:
    return pa.schema([pa.field(name, _text_type(kind), nullable) for name, kind, nullable in fields])


def _by_text(ends: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {topic: {str(p): end for p, end in sorted(some.items())} for topic, some in sorted(ends.items())}


def define_view(
    name: str,
    query: str,
    columns: pa.Schema,
    *,
    names: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    emit_on_close: bool = False,
    inputs: Mapping[str, Sequence[str]] | None = None,
    late: pa.Schema | None = None,
) -> ViewDefinition:
    """Return a checked definition. `columns` are the columns that the query returns; `names`, if any, replace their names."""
    check_view(name, names)
    if names and len(names) != len(columns):
        raise SchemaError(
            f"view {name!r} names {len(names)} columns, but its query has {len(columns)}",
            detail=f"the columns of the query are {', '.join(columns.names)}",
            hint="name every column of the query, or none",
            view=name,
            expected=len(columns),
            actual=len(names),
        )
    fields = [f.with_name(new) for f, new in zip(columns, names, strict=True)] if names else list(columns)
    _check_columns(name, [f.name for f in fields])
    made = view_options(options or {})
    known = {read: tuple(columns) for read, columns in (inputs or {}).items()}
    return ViewDefinition(name, query, pa.schema(fields), tuple(names), made, emit_on_close, known, late)


def check_view(name: str, names: Sequence[str] = ()) -> None:
    """Check the name and the column list of a view, before its query is analysed."""
    if not NAME.match(name):
        raise SchemaError(
            f"{name!r} cannot be the name of a view",
            hint="use letters, digits and underscores, not starting with a digit",
            view=name,
            reason="invalid-name",
        )
    check_free(name)
    _check_columns(name, names)


def _check_columns(view: str, names: Sequence[str]) -> None:
    folded = [n.lower() for n in names]
    for name in names:
        if folded.count(name.lower()) > 1:
            raise SchemaError(
                f"view {view!r} has the column {name!r} twice (names ignore case)",
                hint="give each its own name with AS, or in a column list after the view's name",
                view=view,
                column=name,
                reason="duplicate-column",
            )
        if name.lower() in VIEW_METADATA_COLUMNS:
            raise SchemaError(
                f"column {name!r} of view {view!r} has the name of a metadata column",
                hint="give it another name with AS",
                view=view,
                column=name,
                reason="reserved-column",
            )


def view_difference(old: ViewDefinition, new: ViewDefinition) -> list[str]:
    """Return the differences between two view definitions as lines; empty if they are equal."""
    lines = []
    for what, show in _VIEW_FACTS.items():
        was, now = show(old), show(new)
        if was != now:
            lines += [f"{sign} {what}: {said}" for sign, said in (("-", was), ("+", now))]
    return lines


_VIEW_FACTS: dict[str, Callable[[ViewDefinition], str]] = {
    "query": lambda view: view.query,
    "columns": lambda view: ", ".join(view.names) or "as the query names them",
    "options": lambda view: ", ".join(f"{k} = {v}" for k, v in view.options.shown().items()) or "none",
    "emits": lambda view: "on window close" if view.emit_on_close else "every change",
}
_ARROW = "arrow:"


def _type_text(kind: pa.DataType) -> str:
    """Return a type as DDL if that is lossless; else, as for intervals, an Arrow schema of one column in base64."""
    try:
        text = format_type(kind)
        parsed = parse_type(text)
        if (parsed, str(parsed)) == (kind, str(kind)):
            return text
    except SchemaError:
        pass
    schema = pa.schema([pa.field("", kind)])
    return _ARROW + base64.b64encode(schema.serialize().to_pybytes()).decode()


def _text_type(text: str) -> pa.DataType:
    if not text.startswith(_ARROW):
        return parse_type(text)
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text.removeprefix(_ARROW))))
    return schema.field(0).type
