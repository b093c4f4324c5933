"""What docs/sql.md says of SQL in views is so: its examples are read from the page, run, and compared with Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from tests.repo.tree import ROOT, blocks

PAGE = ROOT / "docs" / "sql.md"
KINDS = {
    "aggregate": r"aggregate ",
    "join": r"(inner|left|right|full|semi|anti|existence) join on ",
    "rank": r"(row_number|rank|dense_rank) <= ",
    "whole group": r"recompute whole groups ",
    "sliding": r"recompute near changes ",
    "pattern": r"match rows ",
    "sessions": r"sessions of rows |session aggregate ",
}
"""How EXPLAIN begins the line of an operator of each kind."""

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def table(*header: str) -> list[tuple[str, ...]]:
    """The rows of every table of the page with this header; a cell that is all code is given without its backticks."""
    found: list[tuple[str, ...]] = []
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = tuple(_cell(c) for c in re.split(r"(?<!\\)\|", line)[1:-1])
        if cells == header:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= {"-", ":"}:
            found.append(cells)
    return found


def _cell(text: str) -> str:
    text = text.strip().replace("\\|", "|")
    whole = re.fullmatch(r"`([^`]*)`", text)
    return whole[1] if whole else text


SUPPORTED = table("feature", "example", "kept as", "cost follows")
REFUSED = table("example", "reason", "instead")
NOT_YET = table("statement", "message")


def declarations() -> str:
    (block,) = (b for b in blocks(PAGE) if b.language == "sql")
    return block.text


def order(
    number: int,
    customer: int | None,
    amount: int | None,
    price: float | None,
    tags: list[str | None] | None,
    items: list[tuple[str, int | None]] | None,
    minute: int | None,
) -> dict[str, Any]:
    return {
        "id": number,
        "customer": customer,
        "amount": amount,
        "price": price,
        "tags": tags,
        "items": None if items is None else [{"sku": sku, "n": n} for sku, n in items],
        "at": None if minute is None else NOON + timedelta(minutes=minute),
    }


def customer(number: int, name: str, country: str | None) -> dict[str, Any]:
    return {"id": number, "name": name, "country": country}


def click(user: int | None, url: str, minute: int) -> dict[str, Any]:
    return {"user": user, "url": url, "at": NOON + timedelta(minutes=minute)}


def begin(ws: hw.Workspace) -> None:
    """Rows with nulls, ties, duplicates, empty lists, and keys that have no match."""
    ws.append(
        {
            "orders": [
                order(1, 1, 10, 1.5, ["a", "b"], [("x", 1), ("y", 2)], 0),
                order(2, 1, 20, 2.5, ["b"], [("x", 3)], 1),
                order(3, 2, 20, 2.5, [], [], 7),
                order(4, 2, None, None, None, None, 11),
                order(5, None, 7, -3.25, ["c", None, "a"], [("z", None)], None),
                order(6, 9, 10, 0.0, ["a"], None, 61),
            ],
            "customers": [
                customer(1, "ada", "ch"),
                customer(2, "bob", "de"),
                customer(3, "cyd", "ch"),
                customer(4, "dan", None),
            ],
            "clicks": [
                click(1, "/a", 0),
                click(1, "/a", 0),
                click(1, "/b", 3),
                click(2, "/a", 12),
                click(None, "/a", 14),
                click(3, "/c", 65),
            ],
        }
    )


def change(ws: hw.Workspace) -> None:
    """Updates that move rows between groups, deletions, and rows that find a match at last."""
    ws.append(
        {
            "orders": [
                order(2, 2, 25, 2.5, ["b", "d"], [("y", 1)], 2),
                order(4, 2, 5, 1.25, ["a"], [("x", 9)], 12),
                order(7, 3, 20, 2.5, ["a"], [("x", 1)], 3),
                {"id": 1, "_op": "delete"},
            ],
            "customers": [customer(2, "bea", "ch"), customer(9, "eve", "at"), {"id": 4, "_op": "delete"}],
            "clicks": [click(2, "/b", 1), click(3, "/a", 70)],
        }
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """The topics of the page, without rows."""
    with hw.open(tmp_path_factory.mktemp("demo") / "w", durability="os", spark=spark) as ws:
        ws.sql(declarations())
        yield ws


def underlined(error: hw.HeadwaterError) -> str:
    """The part of the statement that an error points at."""
    *_, text, marks = (error.detail or "\n").splitlines()
    assert "^" in marks, f"nothing is underlined:\n{error}"
    return text[marks.index("^") : marks.rindex("^") + 1]


@pytest.mark.slow
def test_every_example_that_works_equals_its_select_in_batch(tmp_path: Path, spark: SparkSession) -> None:
    """One workspace for all of them: created, run, changed, run again, verified."""
    names = {f"example_{number}": row for number, row in enumerate(SUPPORTED)}
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(declarations())
        begin(ws)
        for name, (feature, example, _, _) in names.items():
            try:
                ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {example}")
            except hw.HeadwaterError as error:
                pytest.fail(f"{feature}: {error}")
        for step in (ws.run, lambda: change(ws), ws.run):
            report = step()
            if report is not None:
                assert {names[n][0]: why for n, why in report.stopped.items()} == {}
        found = [d.message for d in ws.verify().differences]
        assert [re.sub(r"example_\d+", lambda m: names[m[0]][1], problem) for problem in found] == []
        for name, (feature, example, kept, _) in names.items():
            assert kept == ", ".join(kinds(ws, name)), f"{feature}: {example} is not kept as the page says"


def kinds(ws: hw.Workspace, view: str) -> list[str]:
    """How a view is kept, as EXPLAIN tells it."""
    explained = ws.sql(f"EXPLAIN {view}")
    assert explained is not None
    graph = next(row["value"] for row in explained.to_pylist() if row["property"] == "graph")
    lines = [line.strip() for line in graph.splitlines()]
    return [kind for kind, begins in KINDS.items() if any(re.match(begins, line) for line in lines)] or [
        "linear"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("example", "reason", "_instead"), REFUSED)
def test_what_the_page_calls_refused_is_refused(
    demo: hw.Workspace, example: str, reason: str, _instead: str
) -> None:
    with pytest.raises(hw.UsageError) as refused:
        demo.sql(f"CREATE MATERIALIZED VIEW refused AS {example}")
    assert reason in refused.value.message
    assert underlined(refused.value) in example


@pytest.mark.slow
@pytest.mark.parametrize(("statement", "message"), NOT_YET)
def test_what_the_page_calls_not_there_yet_says_so(demo: hw.Workspace, statement: str, message: str) -> None:
    with pytest.raises(hw.UsageError) as refused:
        demo.sql(statement)
    assert message in refused.value.message


def test_the_page_has_examples_of_all_it_promises() -> None:
    assert len(SUPPORTED) >= 60
    assert {kind for _, _, kept, _ in SUPPORTED for kind in kept.split(", ")} == {"linear", *KINDS}
    assert len(REFUSED) >= 20
    assert NOT_YET
