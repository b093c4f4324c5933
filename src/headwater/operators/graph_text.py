"""The stored text of an operator graph, from which the fingerprint of a plan is computed.

A fingerprint is part of manifests, bases and the names of arrangements. State with another fingerprint belongs to
another view: it is rebuilt, and a view whose history was removed stops. So the text of a graph must stay the same for
ever, whatever the names of its classes, their fields and their modules: the tables below define the names under which
these are stored. A renamed class or field keeps its stored name here; a new field is written only where it differs from
its default.

The form is that of `repr` of the dataclasses of the first release, with schemas and types as printed by pyarrow 25.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.operators import graph as g

_SHOWN_BYTES = 100
"""Length in bytes beyond which a name or type is truncated in the text of a schema."""
_PREVIEW_ROWS = 20
_PREVIEW_COLUMNS = 10
"""Limits above which a constant is printed in part; a digest of all its values then follows."""


@dataclass(frozen=True)
class _Form:
    """The stored form of a class: its name, and its attributes with their stored names, in order."""

    name: str
    fields: tuple[tuple[str, str], ...]
    """Stored name and attribute of each field."""
    later: tuple[tuple[str, str, Any], ...] = ()
    """Fields added later: stored name, attribute, and the value for which the field is omitted."""


def _form(name: str, fields: str) -> _Form:
    """Build a form from a space-separated list of names; `stored=attribute` where the names differ."""
    pairs = [field.partition("=") for field in fields.split()]
    return _Form(name, tuple((stored, attribute or stored) for stored, _, attribute in pairs))


FORMS: dict[type, _Form] = {
    g.Expression: _form("Expression", "text type column"),
    g.Filter: _form("Filter", "condition"),
    g.Project: _form("Project", "expressions"),
    g.Expand: _form("Expand", "projections"),
    g.Generate: _form("Generate", "text kind argument outer keep"),
    g.Replicate: _form("Replicate", "count keep"),
    g.UdfCall: _form("Call", "name signature text args place type"),
    g.OrderKey: _form("Order", "column descending nulls_first"),
    g.MergeableFunction: _form("Function", "kind text args filter ordered"),
    g.CustomFunction: _form("Custom", "name signature text args"),
    g.SourceNode: _form("Source", "name columns schema append_only inputs"),
    g.Constant: _form("Constant", "rows schema append_only inputs"),
    g.Map: _form("Map", "input steps schema"),
    g.Union: _form("Union", "inputs schema"),
    g.AggregateNode: _form("Aggregate", "input keys functions schema append_only customs"),
    g.Join: _form("Join", "left right kind left_key right_key condition schema at_most_one"),
    g.Rank: _form("Rank", "input key order function limit offset shows_rank schema append_only"),
    g.Regroup: _form("Regroup", "input key text schema whole append_only"),
    g.FrameFunction: _form("Framed", "function low high"),
    g.Slide: _form("Slide", "input key time preceding following text framed schema append_only"),
    g.Sessions: _form("Sessions", "input key column schema append_only"),
    g.SessionAggregate: _form("SessionAggregate", "input keys column functions schema append_only"),
    g.VersionsNode: _form("Versions", "input key begin offset op schema append_only"),
    g.FoldNode: _form("Fold", "input key name signature schema append_only"),
    g.Percolate: _form("Meet", "documents queries text schema backfill"),
    g.Close: _form("Close", "input domains schema append_only"),
}
"""Stored form of each class. Names in it never change."""


def fingerprint_of(text: str) -> str:
    """Return the fingerprint of a graph, given its stored text and anything else that its state depends on."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def graph_text(root: g.Node) -> str:
    """Return the stored text of a graph. Equal graphs have equal texts, and different graphs different texts."""
    return _text(root) + "".join(
        f"\nrows {_digest(node.rows)}"
        for node in g.walk(root)
        if isinstance(node, g.Constant) and _is_cut_short(node.rows)
    )


def _text(value: Any) -> str:
    if (form := FORMS.get(type(value))) is not None:
        fields = [f"{stored}={_text(getattr(value, attribute))}" for stored, attribute in form.fields]
        fields += [
            f"{stored}={_text(given)}"
            for stored, attribute, left_out in form.later
            if (given := getattr(value, attribute)) != left_out
        ]
        return f"{form.name}({', '.join(fields)})"
    match value:
        case None | bool() | int() | str():
            return repr(value)
        case tuple():
            items = [_text(item) for item in value]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        case pa.DataType():
            return f"{_type_class(value)}({type_text(value)})"
        case pa.Schema():
            return schema_text(value)
        case pa.RecordBatch():
            return repr(value)
    raise TypeError(f"{type(value).__name__} has no text; add one to FORMS")


def schema_text(schema: pa.Schema) -> str:
    """Return the stored text of a schema: a line for each column, followed by one for each part of a nested type."""
    return "\n".join(line for field in schema for line in _field_lines(field, "", ""))


def _field_lines(field: pa.Field, label: str, indent: str) -> list[str]:
    kind = field.type
    suffix = "" if field.nullable else " not null"
    lines = [f"{indent}{label}{_shortened(field.name)}: {_shortened(type_text(kind))}{suffix}"]
    below = indent + ("  " if not label else "    ")
    for number, part in enumerate(_parts(kind)):
        lines += _field_lines(part, f"child {number}, ", below)
    return lines


def _shortened(text: str) -> str:
    """Truncate a name or a type as in the text of a schema; the lines of its parts have the text cut off."""
    data = text.encode()
    left_out = len(data) - _SHOWN_BYTES
    return (
        f"{data[:_SHOWN_BYTES].decode(errors='replace')} (... {left_out} chars omitted)"
        if left_out > 0
        else text
    )


def _parts(kind: pa.DataType) -> list[pa.Field]:
    types = pa.types
    if types.is_list(kind):
        return [kind.value_field]
    if types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return [pa.field("entries", entries, nullable=False)]
    if types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    return []


def _field_type(field: pa.Field) -> str:
    return type_text(field.type) + ("" if field.nullable else " not null")


def type_text(kind: pa.DataType) -> str:
    """Return the stored text of a type."""
    types = pa.types
    if name := _PLAIN.get(kind):
        return name
    if types.is_decimal128(kind):
        return f"decimal128({kind.precision}, {kind.scale})"
    if types.is_list(kind):
        return f"list<{kind.value_field.name}: {_field_type(kind.value_field)}>"
    if types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return f"struct<{', '.join(f'{f.name}: {_field_type(f)}' for f in fields)}>"
    return str(kind)


_PLAIN: dict[pa.DataType, str] = {
    pa.null(): "null",
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date32[day]",
    pa.timestamp("us"): "timestamp[us]",
    pa.timestamp("us", tz="UTC"): "timestamp[us, tz=UTC]",
    pa.duration("us"): "duration[us]",
}


def _type_class(kind: pa.DataType) -> str:
    """Return the name under which a class of pyarrow's types is stored."""
    types = pa.types
    kinds = (
        (types.is_decimal128, "Decimal128Type"),
        (types.is_timestamp, "TimestampType"),
        (types.is_duration, "DurationType"),
        (types.is_list, "ListType"),
        (types.is_map, "MapType"),
        (types.is_struct, "StructType"),
    )
    if kind in _PLAIN and not (types.is_timestamp(kind) or types.is_duration(kind)):
        return "DataType"
    return next((name for is_kind, name in kinds if is_kind(kind)), type(kind).__name__)


def _is_cut_short(rows: pa.RecordBatch) -> bool:
    """Whether the printed form of a constant omits values."""
    if rows.num_rows > _PREVIEW_ROWS or rows.num_columns > _PREVIEW_COLUMNS:
        return True
    text = repr(rows)
    is_nested = any(pa.types.is_nested(kind) for kind in rows.schema.types)
    return " chars omitted)" in text or (is_nested and "..." in text)


def _digest(rows: pa.RecordBatch) -> str:
    """Return a digest of all values of a constant."""
    return hashlib.sha256(repr(rows.to_pylist()).encode()).hexdigest()[:16]
