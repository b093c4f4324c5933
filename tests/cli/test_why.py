"""`headwater why`: on a real workspace and a real Spark."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.program import cli
from tests.shared_spark import make_session

pytestmark = pytest.mark.slow

DECLARED = """
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
CREATE TOPIC orders (id BIGINT, customer BIGINT, day DATE, amount DECIMAL(10, 2));
CREATE MATERIALIZED VIEW revenue AS
  SELECT c.country, o.day, sum(o.amount) AS revenue
  FROM orders o LEFT JOIN customers c ON o.customer = c.id GROUP BY c.country, o.day;
CREATE MATERIALIZED VIEW totals AS SELECT country, count(*) AS days FROM revenue GROUP BY country;
"""


def invoke(folder: Path, *arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["-w", str(folder), *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def order(number: int, customer: int, amount: str) -> dict[str, Any]:
    return {"id": number, "customer": customer, "day": "2026-01-31", "amount": amount}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace at tick 2, and a view that no tick has yet."""
    folder = tmp_path_factory.mktemp("why") / "w"
    spark = make_session()
    with hw.open(folder, durability="os", spark=spark) as ws:
        ws.sql(DECLARED)
        ws.topic("customers").append([{"id": 1, "country": "ch"}, {"id": 2, "country": "de"}])
        ws.topic("orders").append([_dated(order(1, 1, "10.50")), _dated(order(2, 2, "20"))])
        ws.run()
        ws.topic("orders").append([_dated(order(3, 1, "5")), _dated(order(4, 9, "7"))])
        ws.run()
        ws.sql("CREATE MATERIALIZED VIEW later AS SELECT id FROM orders")
    return folder


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    from datetime import date
    from decimal import Decimal

    return row | {"day": date.fromisoformat(row["day"]), "amount": Decimal(row["amount"])}


def test_it_prints_the_row_the_views_on_the_way_and_the_records(shop: Path) -> None:
    said = invoke(shop, "why", "totals", "ch").stdout
    assert "totals at tick 2, last changed by tick 1\ncountry  days\nch          1\n" in said
    assert "\nthrough 1 row of revenue\n" in said
    assert "\nfrom 1 record of customers\n" in said
    assert "\nfrom 2 records of orders\n" in said
    assert "_partition  _offset  _appended_at" in said


def test_a_key_of_several_columns_is_separated_by_commas_or_named(shop: Path) -> None:
    by_place = json.loads(invoke(shop, "why", "revenue", "ch,2026-01-31", "--json").stdout)
    by_name = json.loads(invoke(shop, "why", "revenue", "DAY=2026-01-31", "country=ch", "--json").stdout)
    assert by_place == by_name
    assert by_place["rows"] == [{"country": "ch", "day": "2026-01-31", "revenue": "15.50"}]
    assert (by_place["tick"], by_place["changed_tick"], by_place["complete"]) == (2, 2, True)
    assert [r["id"] for r in by_place["records"]["orders"]] == [1, 3]
    assert [(r["_partition"], r["_offset"]) for r in by_place["records"]["orders"]] == [(0, 0), (0, 2)]


def test_null_is_a_key_too(shop: Path) -> None:
    found = json.loads(invoke(shop, "why", "totals", "null", "--json").stdout)
    assert found["rows"] == [{"country": None, "days": 1}]
    assert list(found["records"]) == ["orders"]
    assert found["path"] == {"revenue": [{"country": None, "day": "2026-01-31", "revenue": "7.00"}]}


def test_an_earlier_tick_can_be_asked(shop: Path) -> None:
    found = json.loads(invoke(shop, "why", "revenue", "country=ch", "--as-of", "1", "--json").stdout)
    assert [r["id"] for r in found["records"]["orders"]] == [1]


def test_a_key_that_finds_nothing_fails_with_what_to_do(shop: Path) -> None:
    said = invoke(shop, "why", "totals", "fr", status=1).stderr
    assert "error: view 'totals' has no row at tick 2 with country = 'fr'" in said
    assert "hint: " in said


def test_a_key_that_cannot_be_is_wrong_usage(shop: Path) -> None:
    said = invoke(shop, "why", "revenue", "ch", status=2).stderr
    assert "country, day: 2 values, not 1" in said
    assert "headwater why revenue country=..." in said
    said = invoke(shop, "why", "revenue", "day=yesterday", status=2).stderr
    assert "'yesterday' is not a value of column 'day', which has the type DATE" in said
    said = invoke(shop, "why", "revenue", "contry=ch", status=2).stderr
    assert (
        said
        == "error: view 'revenue' has no column 'contry'\nhint: did you mean country?\ncode: bad-request (docs/error-codes.md)\n"
    )
    said = invoke(shop, "why", "revenue", "country=ch", "x=1", status=2).stderr
    assert (
        said
        == "error: view 'revenue' has no column 'x'\nhint: its columns are country, day, revenue\ncode: bad-request (docs/error-codes.md)\n"
    )
    assert "no row at tick 2 with country = 'a=b'" in invoke(shop, "why", "totals", "a=b", status=1).stderr
    assert "Missing argument" in invoke(shop, "why", "revenue", status=2).stderr


def test_a_view_that_is_no_part_of_the_tick_says_so(shop: Path) -> None:
    said = invoke(shop, "why", "later", "1", status=1).stderr
    assert "error: there is no view 'later' at tick 2" in said
    assert "did you mean" in invoke(shop, "why", "total", "ch", status=1).stderr


def test_help_says_how_a_key_is_written(shop: Path) -> None:
    said = invoke(shop, "why", "--help").stdout
    assert "country=ch" in said
    assert "--as-of" in said
