"""The stored text of a graph stays what it is: fingerprints of views are made of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from headwater.operators import graph as g
from headwater.operators.graph_text import FORMS, fingerprint_of, graph_text, schema_text, type_text
from headwater.operators.match_recognize.spec import MatchSpec
from tests.repo.tree import ROOT

GOLDEN = ROOT / "tests" / "golden" / "graph-text-1.txt"
"""Made by the first release that wrote fingerprints. It never changes."""
NOT_STORED = {g.MatchRange, g.Waits, g.RowPattern}
"""Parts of handles and hints, which make no difference to what state means."""

KINDS = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.duration("us"), pa.decimal128(38, 18),
    pa.month_day_nano_interval(),
    pa.list_(pa.field("element", pa.int64(), nullable=False)), pa.map_(pa.string(), pa.list_(pa.int8())),
    pa.struct([pa.field("a b", pa.struct([("x", pa.string())]), nullable=False), pa.field("é" * 60, pa.bool_())]),
]  # fmt: skip
SCHEMA = pa.schema(
    [pa.field(f"c{i}", kind, nullable=i % 3 != 1 or pa.types.is_null(kind)) for i, kind in enumerate(KINDS)]
)


def one_of_each() -> g.Node:
    """A graph in which every class and every kind of value occurs."""
    ids = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("it's", pa.string())])
    column = g.Expression("id#", pa.int64(), 0, handle=object())
    text = g.Expression("concat(\"a\", 'b')", pa.string(), None, handle=object())
    orders = g.SourceNode("orders", (0, 2), ids, append_only=True, hidden=("_offset",))
    constant = g.Constant(pa.record_batch({"id": [1, None], "it's": ["x", 'y"']}), ids)
    steps = (
        g.Filter(g.Expression("(id > 1)", pa.bool_(), None, handle=None)),
        g.Project((column, text)),
        g.Expand(((column,), (text, column))),
        g.Generate("explode(x)", "explode", text, True, (0,)),
        g.Replicate(column, (text,)),
        g.UdfCall("f", "1:abc", "f(id)", (column,), 3, pa.list_(pa.float64()), handle=None),
    )
    mapped = g.Map(g.Union((orders, constant), ids), steps, SCHEMA)
    functions = (
        g.MergeableFunction("sum", "sum(x)", (1,), None, False),
        g.MergeableFunction("max", "max(x)", (1, 2), 0, True, sketch=object()),
    )
    customs = (g.CustomFunction("best", "2:def", "best(x)", (1,), handle=None),)
    aggregate = g.AggregateNode(mapped, 1, functions, ids, customs=customs)
    joined = g.Join(aggregate, orders, "left", (0,), (1,), text, ids, range=g.MatchRange(0, 1, 2, None))
    scalar = g.Join(joined, constant, "existence", (), (), None, ids, at_most_one=True)
    ranked = g.Rank(
        scalar, (0,), (g.OrderKey(1, True, False), g.OrderKey(0, False, True)), "rank", 3, 1, True, ids
    )
    pattern = g.RowPattern(spec=MatchSpec.__new__(MatchSpec), expressions=(), text="PATTERN (A)", waits=None)
    regrouped = g.Regroup(ranked, (0,), "lag(x)", pattern, ids, whole=True)
    framed = (g.FrameFunction(functions[0], -60_000_000, 0),)
    slide = g.Slide(regrouped, (0,), 1, 60, 0, "sum(x) OVER w", framed, ids, evaluate=object())
    sessions = g.SessionAggregate(g.Sessions(slide, (0,), 1, ids), 2, 1, functions, ids, append_only=True)
    versions = g.VersionsNode(sessions, (0,), 1, 2, 3, ids)
    folded = g.FoldNode(versions, (0,), "fold", "1:aa", ids, handle=None, append_only=True)
    met = g.Percolate(folded, orders, "matches", ids, handle=None, backfill=False)
    return g.Close(met, (("orders", "clicks"), ("t",)), ids)


def test_the_text_of_a_graph_is_what_it_was() -> None:
    assert graph_text(one_of_each()) == GOLDEN.read_text(encoding="utf-8")
    assert fingerprint_of("graph") == "eef93e1d14482804"


def test_every_class_of_a_graph_has_a_stored_form() -> None:
    classes = {c for c in vars(g).values() if dataclasses.is_dataclass(c) and c.__module__ == g.__name__}
    assert classes - NOT_STORED == FORMS.keys(), "give a new class a form in graph_text.FORMS"
    there = {type(value) for value in everything_in(one_of_each())}
    assert FORMS.keys() <= there, "give a new class a place in one_of_each, and a golden file of its own"


def everything_in(value: Any) -> list[Any]:
    """A value of a graph with all that is stored below it."""
    parts = value if isinstance(value, tuple) else []
    if (form := FORMS.get(type(value))) is not None:
        parts = [getattr(value, attribute) for _, attribute in form.fields]
    return [value, *(deeper for part in parts for deeper in everything_in(part))]


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_every_field_that_tells_graphs_apart_is_stored(kind: type) -> None:
    form = FORMS[kind]
    stored = {attribute for _, attribute in form.fields} | {attribute for _, attribute, _ in form.later}
    shown = {f.name for f in dataclasses.fields(kind) if f.repr}
    assert stored == shown, "a field that state depends on is stored: add it to `later` in graph_text.FORMS"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_types_and_schemas_have_the_text_that_pyarrow_25_gives_them(kind: pa.DataType) -> None:
    if pa.__version__.startswith("25."):  # the golden text holds the form whatever the version is
        schema = pa.schema([("a", kind), ("b" * 120, pa.list_(kind))])
        assert type_text(kind) == str(kind)
        assert schema_text(schema) == str(schema)


def constant(**columns: list[Any]) -> g.Constant:
    rows = pa.record_batch(columns)
    return g.Constant(rows, rows.schema)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (constant(a=[*range(40)]), constant(a=[*range(15), 99, *range(16, 40)])),
        (constant(a=["x" * 150 + "1"]), constant(a=["x" * 150 + "2"])),
        (constant(a=[[*range(40)]]), constant(a=[[*range(15), 99, *range(16, 40)]])),
        (constant(**{f"c{i}": [1] for i in range(12)}), constant(**{f"c{i}": [i // 11 + 1] for i in range(12)})),
    ],
    ids=["rows", "text", "list", "columns"],
)  # fmt: skip
def test_constants_that_print_alike_have_different_texts(one: g.Constant, other: g.Constant) -> None:
    assert repr(one) == repr(other)
    assert graph_text(one) != graph_text(other)


def test_a_constant_that_is_printed_whole_is_stored_as_it_always_was() -> None:
    small = constant(a=[*range(20)], b=["..."] * 20)
    assert graph_text(small) == repr(small)
