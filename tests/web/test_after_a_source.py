"""`after=` with a position of Postgres: the answer has seen what was committed there, whichever process captures it."""

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import headwater as hw
from tests.postgres import postgres_server, postgres_url
from tests.web.serving import client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["postgres_server", "postgres_url"]


@pytest.mark.slow
def test_a_view_is_read_after_a_commit_in_postgres(
    spark: "SparkSession", tmp_path: Path, postgres_url: str
) -> None:
    with (
        psycopg.connect(postgres_url, autocommit=True) as shop,
        hw.open(tmp_path / "ws", spark=spark) as ws,
        hw.open(tmp_path / "ws") as other,
    ):
        shop.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint)")
        ws.sql(f"""
            CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'orders');
            CREATE MATERIALIZED VIEW total AS SELECT count(*) AS orders, sum(amount) AS amount FROM orders;
        """)
        with ws.start(), client_of(other) as client:
            for number in range(1, 4):
                shop.execute("INSERT INTO orders VALUES (%s, 10)", [number])
                (lsn,) = shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
                answer = client.get(f"/views/total?after={lsn}&timeout=60")
                assert answer.status_code == 200, answer.text
                assert answer.json()["rows"] == [{"orders": number, "amount": 10 * number}]
            ahead = client.get("/views/total?after=FF/0&timeout=0.2")
            assert (ahead.status_code, ahead.json()["title"]) == (503, "log timeout")
