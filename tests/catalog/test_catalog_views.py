"""What a view is declared to be: checked, stored and shown."""

import json

import pyarrow as pa
import pytest

from headwater.catalog.view_definitions import (
    ViewDefinition,
    ViewOptions,
    define_view,
    view_difference,
    view_options,
)
from headwater.core.errors import NewerVersionError, SchemaError, UsageError
from headwater.core.names import Named, canonical_name
from headwater.core.types import TIMESTAMP
from tests.raising import raises

WINDOW = pa.struct([pa.field("start", TIMESTAMP), pa.field("end", TIMESTAMP)])
ODD = [
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.null(),
    pa.list_(pa.field("element", pa.int32(), nullable=False)),
    pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
    pa.struct([pa.field("d", pa.duration("us"))]),
]
SCHEMA = pa.schema(
    [
        pa.field("w", WINDOW, nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("amount", pa.decimal128(20, 2)),
        *(pa.field(f"odd {n}", kind) for n, kind in enumerate(ODD)),
    ]
)


def made(**changes: object) -> ViewDefinition:
    given = {"name": "v", "query": "SELECT ';' AS a", "columns": pa.schema([("a", pa.string())]), **changes}
    return define_view(**given)  # type: ignore[arg-type]


def test_a_definition_reads_back_from_its_document() -> None:
    view = made(
        columns=SCHEMA,
        names=[*SCHEMA.names[:-1], "last one"],
        options={"late": "correct", "correct_for": "1 hour", "on_error": "divert"},
        emit_on_close=True,
        inputs={"clicks": ["n", "at"], "orders": ["id"]},
    )
    again = ViewDefinition.from_document(json.loads(json.dumps(view.to_document())), incarnation=17)
    assert again == view
    assert again.columns.equals(view.columns)
    assert [str(kind) for kind in again.columns.types] == [str(kind) for kind in view.columns.types]
    assert (again.incarnation, again.reads) == (17, ("clicks", "orders"))
    assert again.inputs == {"clicks": ("n", "at"), "orders": ("id",)}


def test_types_that_ddl_can_say_are_stored_so() -> None:
    columns = made(columns=SCHEMA).to_document()["columns"]
    assert columns[0] == ["w", "STRUCT<start: TIMESTAMP, end: TIMESTAMP>", False]
    assert columns[1] == ["n", "BIGINT", False]
    assert all(kind.startswith("arrow:") for _, kind, _ in columns[3:])


def test_a_document_of_a_newer_version_is_refused() -> None:
    document = made().to_document()
    with raises(NewerVersionError, found=2, supported=1):
        ViewDefinition.from_document({**document, "format": 2})
    with raises(NewerVersionError, options=["idle"]):
        ViewDefinition.from_document({**document, "options": {**document["options"], "idle": 3}})


def test_options_left_out_of_a_document_have_their_defaults() -> None:
    assert ViewDefinition.from_document({**made().to_document(), "options": {}}).options == ViewOptions()


def test_the_statement_shows_what_is_not_usual() -> None:
    assert made().to_sql() == "CREATE MATERIALIZED VIEW v AS\nSELECT ';' AS a"
    assert made(names=["b c"], options={"late": "drop"}, emit_on_close=True).to_sql() == (
        "CREATE MATERIALIZED VIEW v (`b c`) WITH (late = 'drop') AS\nSELECT ';' AS a\nEMIT ON WINDOW CLOSE"
    )


def test_a_column_list_renames_in_order() -> None:
    view = made(columns=pa.schema([("a", pa.string()), ("b", pa.int64())]), names=["x", "y"])
    assert view.columns == pa.schema([("x", pa.string()), ("y", pa.int64())])
    assert made().names == ()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"name": "a b"}, {"view": "a b", "reason": "invalid-name"}),
        ({"names": ["a", "b"]}, {"expected": 1, "actual": 2}),
        (
            {"columns": pa.schema([("a", pa.int64()), ("A", pa.int64())])},
            {"column": "a", "reason": "duplicate-column"},
        ),
        (
            {"columns": pa.schema([("_Weight", pa.int64())])},
            {"column": "_Weight", "reason": "reserved-column"},
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], facts: dict[str, object]) -> None:
    with raises(SchemaError, **facts):
        made(**changes)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"late": "later"}, {"option": "late", "value": "later"}),
        ({"on_error": 3}, {"option": "on_error", "value": 3}),
        ({"partitions": 3}, {"option": "partitions", "reason": "unknown-option"}),
        ({"correct_for": 5}, {"argument": "correct_for", "value": 5}),
        ({"late": "divert", "correct_for": "1 hour"}, {"option": "correct_for", "reason": "not-correct"}),
    ],
)
def test_options_are_checked(options: dict[str, object], facts: dict[str, object]) -> None:
    with raises(UsageError, **facts):
        view_options(options)


def test_null_is_the_default_of_an_option() -> None:
    assert view_options({"late": None, "correct_for": None}) == ViewOptions()


def test_a_difference_says_what_is_there_and_what_is_asked_for() -> None:
    assert view_difference(made(), made(inputs={"clicks": ["n"]})) == []
    found = view_difference(made(), made(query="SELECT 1 AS a", options={"late": "drop"}, emit_on_close=True))
    assert found == [
        "- query: SELECT ';' AS a",
        "+ query: SELECT 1 AS a",
        "- options: none",
        "+ options: late = 'drop'",
        "- emits: every change",
        "+ emits: on window close",
    ]


def test_names_are_found_in_any_case() -> None:
    assert canonical_name(["Clicks"], "cLICKS") == "Clicks"
    assert canonical_name(["Clicks", "clicks"], "clicks") == "clicks"
    assert canonical_name(["Clicks", "clicks"], "CLICKS") is None
    assert canonical_name([], "a") is None
    things = Named({"Clicks": 1, "b": 2})
    assert (things["clicks"], things.get("B"), things.get("c"), "CLICKS" in things) == (1, 2, None, True)
    assert (dict(things), len(things), things == {"Clicks": 1, "b": 2}) == ({"Clicks": 1, "b": 2}, 2, True)
    with pytest.raises(KeyError):
        things["c"]
