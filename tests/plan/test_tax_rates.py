"""Invoices with the tax rate of their day, three ways: by the day, by the version that the sale names, by the rate it has.

All three give the same, also after rates that came late, and after everything was built anew.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
TOPICS = """
    CREATE TOPIC rates (
      country STRING, percent DECIMAL(5, 2), from_day TIMESTAMP,
      PRIMARY KEY (country), WATERMARK FOR from_day AS from_day
    );
    CREATE TOPIC sales (id BIGINT, country STRING, net DECIMAL(10, 2), at TIMESTAMP);
    CREATE TOPIC sales_by_version (id BIGINT, country STRING, net DECIMAL(10, 2), rate_version STRING);
    CREATE TOPIC sales_with_rate (id BIGINT, net DECIMAL(10, 2), percent DECIMAL(5, 2));
"""
INVOICES = {
    "by_day": "SELECT s.id, s.net, r.percent, cast(s.net * r.percent / 100 AS DECIMAL(12, 2)) AS tax FROM sales s "
    "JOIN rates FOR SYSTEM_TIME AS OF s.at AS r ON s.country = r.country",
    "by_version": "SELECT s.id, s.net, r.percent, cast(s.net * r.percent / 100 AS DECIMAL(12, 2)) AS tax "
    "FROM sales_by_version s JOIN rates FOR SYSTEM_VERSION AS OF s.rate_version AS r ON s.country = r.country",
    "by_copy": "SELECT id, net, percent, cast(net * percent / 100 AS DECIMAL(12, 2)) AS tax FROM sales_with_rate",
}

RATES = (
    "SELECT s.id, r._version, r.percent FROM sales s "
    "JOIN rates FOR SYSTEM_TIME AS OF s.at AS r ON s.country = r.country"
)


def day(number: int) -> datetime:
    return START + timedelta(days=number)


def test_invoices_are_the_same_by_day_by_version_and_by_copy_also_when_rebuilt(
    tmp_path: Path, spark: Any
) -> None:
    chance, number = random.Random(3), 0
    with hw.open(tmp_path / "shop", spark=spark) as ws:
        ws.sql(TOPICS)
        for name, select in INVOICES.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
        for year in range(3):
            ws.topic("rates").append(
                [
                    {"country": c, "percent": chance.randrange(5, 25), "from_day": day(365 * year + late)}
                    for c, late in (("de", 0), ("fr", 30), ("fr", 0))  # the first of the year comes last
                ]
            )
            sold = [
                {
                    "country": chance.choice(["de", "fr"]),
                    "net": chance.randrange(100),
                    "at": day(chance.randrange(365) + 365 * year),
                }
                for _ in range(20)
            ]
            sold = [{"id": (number := number + 1), **sale} for sale in sold]
            ws.topic("sales").append(sold)
            ws.run()
            known = {row["id"]: row for row in ws.query(RATES).to_pylist()}
            by_version = [{n: sale[n] for n in ("id", "country", "net")} for sale in sold]
            ws.topic("sales_by_version").append(
                [{**sale, "rate_version": known[sale["id"]]["_version"]} for sale in by_version]
            )
            ws.topic("sales_with_rate").append(
                [
                    {n: sale[n] for n in ("id", "net")} | {"percent": known[sale["id"]]["percent"]}
                    for sale in sold
                ]
            )
            ws.run()
            invoices = {name: rows(ws, name) for name in INVOICES}
            assert len(invoices["by_day"]) == number
            assert invoices["by_day"] == invoices["by_version"] == invoices["by_copy"]
        before = rows(ws, "by_day")
        for name in INVOICES:
            ws.view(name).rebuild(verify=False)
        ws.run()
        assert all(rows(ws, name) == before for name in INVOICES)
        assert ws.verify().differences == ()


def rows(ws: hw.Workspace, view: str) -> list[dict[str, Any]]:
    return sorted(ws.view(view).read().to_pylist(), key=lambda row: row["id"])
