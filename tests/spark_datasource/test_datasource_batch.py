"""`spark.read` and `df.write` with format("headwater")."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import headwater as hw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

pytestmark = pytest.mark.slow

EVERYTHING = """
  yes BOOLEAN, tiny TINYINT, small SMALLINT, n INT, big BIGINT, f FLOAT, d DOUBLE, money DECIMAL(10,2), s STRING,
  raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, counts MAP<STRING, BIGINT>,
  place STRUCT<city: STRING, at: TIMESTAMP, inner: ARRAY<STRUCT<x: INT NOT NULL>>>
"""
ROW: dict[str, Any] = {
    "yes": True,
    "tiny": -1,
    "small": 2,
    "n": 3,
    "big": 2**60,
    "f": 0.5,
    "d": 0.1,
    "money": Decimal("12.34"),
    "s": "ä",
    "raw": b"\x00\xff",
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
    "local": datetime(2026, 1, 31, 12, 0, 0, 1),
    "tags": ["a", None],
    "counts": {"a": 1, "b": None},
    "place": {"city": "Ulm", "at": datetime(1969, 1, 1, tzinfo=UTC), "inner": [{"x": 1}]},
}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[hw.Workspace]:
    """A workspace in a folder."""
    with hw.open(tmp_path / "shop", durability="os") as ws:
        yield ws


def read(spark: "SparkSession", ws: hw.Workspace, topic: str, **options: Any) -> "DataFrame":
    reader = spark.read.format("headwater").option("workspace", str(ws.path)).option("topic", topic)
    return reader.options(**options).load()


def writer(df: "DataFrame", ws: hw.Workspace, topic: str, **options: Any) -> "DataFrameWriter":
    given = df.write.format("headwater").option("workspace", str(ws.path)).option("topic", topic)
    return given.options(**options).mode("append")


def contents(ws: hw.Workspace, topic: str) -> list[dict[str, Any]]:
    columns = ws.topic(topic).schema.names
    return [row for batch in ws.topic(topic).read() for row in pa.table(batch).select(columns).to_pylist()]


def test_every_type_goes_to_spark_and_back_unchanged(spark: "SparkSession", shop: hw.Workspace) -> None:
    first, second = shop.topic("first", EVERYTHING), shop.topic("second", EVERYTHING)
    first.append([ROW, dict.fromkeys(ROW)])
    df = read(spark, shop, "first")
    types = dict(df.dtypes)
    assert types["at"] == "timestamp"
    assert types["local"] == "timestamp_ntz"
    assert types["money"] == "decimal(10,2)"
    assert types["place"] == "struct<city:string,at:timestamp,inner:array<struct<x:int>>>"
    writer(df, shop, "second").save()
    assert contents(shop, "second") == contents(shop, "first")
    shown = df.where("yes").selectExpr("cast(at AS STRING)", "place.inner[0].x", "counts['a']", "hex(raw)")
    assert [tuple(row) for row in shown.collect()] == [("2026-01-31 12:00:00.000001", 1, 1, "00FF")]
    assert second.schema == first.schema


def test_a_read_is_split_among_tasks_and_begins_at_its_start_position(
    spark: "SparkSession", shop: hw.Workspace
) -> None:
    topic = shop.topic("clicks", "n BIGINT, s STRING", partitions=2)
    topic.append([{"n": n, "s": str(n)} for n in range(1_000)])
    ends = {p: info.end for p, info in topic.partitions().items()}
    df = read(spark, shop, "clicks", rowsPerTask=100)
    assert df.rdd.getNumPartitions() >= 10
    assert df.selectExpr("count(*)", "sum(n)", "max(s)").first() == (1_000, 499_500, "999")
    half = read(spark, shop, "clicks", starting=f'{{"0": {ends[0]}}}')
    assert half.count() == ends[1]
    assert read(spark, shop, "clicks", starting="latest").count() == 0
    assert read(spark, shop, "clicks", starting="2000-01-01").count() == 1_000


def test_columns_are_chosen_by_name_and_metadata_on_request(
    spark: "SparkSession", shop: hw.Workspace
) -> None:
    customers = shop.topic("customers", "id BIGINT, name STRING, PRIMARY KEY (id)")
    customers.append([{"id": 1, "name": "Ada"}])
    customers.delete([{"id": 1}])
    assert read(spark, shop, "customers").columns == ["id", "name", "_op"]
    df = read(spark, shop, "customers", columns="Name, _op", metadata="true")
    assert df.columns == ["name", "_op", "_partition", "_offset", "_appended_at"]
    rows = [(row["name"], row["_op"], row["_partition"], row["_offset"]) for row in df.collect()]
    assert rows == [("Ada", "upsert", 0, 0), (None, "delete", 0, 1)]
    chosen = spark.read.schema("name STRING, _offset BIGINT").format("headwater")
    loaded = chosen.option("workspace", str(shop.path)).option("topic", "customers").load()
    assert [tuple(row) for row in loaded.collect()] == [("Ada", 0), (None, 1)]


def test_upserts_and_deletes_are_written_to_a_keyed_topic(spark: "SparkSession", shop: hw.Workspace) -> None:
    shop.topic("customers", "id BIGINT, name STRING, PRIMARY KEY (id)")
    df = spark.createDataFrame([(1, "Ada", None), (2, None, "delete")], "ID BIGINT, name STRING, _op STRING")
    writer(df.coalesce(1), shop, "customers").save()
    written = pa.concat_tables(pa.table(batch) for batch in shop.topic("customers").read()).to_pylist()
    assert [(row["id"], row["name"], row["_op"]) for row in written] == [
        (1, "Ada", "upsert"),
        (2, None, "delete"),
    ]


def test_a_write_is_one_atomic_append_and_leaves_no_files(spark: "SparkSession", shop: hw.Workspace) -> None:
    shop.topic("clicks", "id BIGINT", partitions=3)
    writer(spark.range(0, 1_000, numPartitions=4), shop, "clicks").save()
    (commits,) = {
        tuple(batch["_sequence"].unique().to_pylist())
        for batch in shop.topic("clicks").read(columns=["id", "_sequence"])
    }
    assert len(commits) == 1
    assert sorted(row["id"] for row in contents(shop, "clicks")) == list(range(1_000))
    assert staged(shop) == []


def staged(ws: hw.Workspace) -> list[Path]:
    assert ws.path is not None
    return list((ws.path / "staging").glob("*"))


def test_a_batch_write_with_a_sequence_is_made_once(spark: "SparkSession", shop: hw.Workspace) -> None:
    shop.topic("clicks", "id BIGINT")
    for _ in range(2):
        writer(spark.range(5), shop, "clicks", producer="job", sequence=7).save()
    # Spark may come to other rows, in other tasks, when it repeats a batch
    writer(spark.range(3, 9, 1, 4), shop, "clicks", producer="job", sequence=7).save()
    writer(spark.range(5, 6), shop, "clicks", producer="job", sequence=8).save()
    assert [row["id"] for row in contents(shop, "clicks")] == [0, 1, 2, 3, 4, 5]


def test_a_bad_row_is_named_and_nothing_is_written(spark: "SparkSession", shop: hw.Workspace) -> None:
    shop.topic("clicks", "id INT")
    with pytest.raises(PySparkException) as caught:
        writer(
            spark.range(2_999_999_998, 3_000_000_001, 1, 1).selectExpr(
                "id - CASE WHEN id < 3000000000 THEN 2999999998 ELSE 0 END AS id"
            ),
            shop,
            "clicks",
        ).save()
    assert all(fact in str(caught.value) for fact in ("'id'", "row 2", "'clicks'", "3000000000"))
    assert contents(shop, "clicks") == []
    assert staged(shop) == []


def test_a_read_that_cannot_be_is_refused_in_our_words(spark: "SparkSession", shop: hw.Workspace) -> None:
    shop.topic("clicks", "id BIGINT")
    place = str(shop.path)
    with pytest.raises(PySparkException) as no_topic:
        read(spark, shop, "klicks")
    assert "topic 'klicks'" in str(no_topic.value)
    with pytest.raises(PySparkException) as no_column:
        read(spark, shop, "clicks", columns="id, nix")
    assert "column 'nix'" in str(no_column.value)
    with pytest.raises(PySparkException) as no_option:
        spark.read.format("headwater").option("workspace", place).load()
    assert "option topic" in str(no_option.value)
    chosen = spark.read.schema("id STRING").format("headwater").option("workspace", place)
    with pytest.raises(PySparkException) as other_type:
        chosen.option("topic", "clicks").load().collect()
    assert all(fact in str(other_type.value) for fact in ("id BIGINT", "id STRING"))


def test_it_can_be_registered_by_hand_too(spark: "SparkSession", shop: hw.Workspace) -> None:
    from headwater.spark_datasource.datasource import register

    shop.topic("clicks", "id BIGINT").append([{"id": 1}])
    other = spark.newSession()
    register(other)
    assert read(other, shop, "clicks").count() == 1
