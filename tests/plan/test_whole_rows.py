"""`array_agg(posts.* ORDER BY ...)`: whole rows as values, kept through changes of both sides of a join."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from tests.raising import raises

pytestmark = pytest.mark.slow

Row = dict[str, Any]

TOPICS = """
    CREATE TOPIC posts (id BIGINT, sender_id BIGINT, text STRING, timestamp TIMESTAMP, PRIMARY KEY (id));
    CREATE TOPIC follows (follower_id BIGINT, followee_id BIGINT, PRIMARY KEY (follower_id, followee_id));
"""
TIMELINES = (
    "CREATE MATERIALIZED VIEW timelines AS SELECT follows.follower_id AS timeline_id, "
    "array_agg(posts.* ORDER BY posts.timestamp DESC) FROM posts JOIN follows ON follows.followee_id = posts.sender_id "
    "GROUP BY follows.follower_id"
)
OTHERS = {
    "listed": "SELECT sender_id, sort_array(array_agg(posts.*)) FROM posts GROUP BY sender_id",
    "some": "SELECT p.sender_id, collect_list(p.* ORDER BY id) FILTER (WHERE id > 3) AS l, "
    "collect_set(p.*) AS s, max_by(p.*, id) AS newest FROM posts p GROUP BY p.sender_id",
    "named": "WITH p AS (SELECT id, text FROM posts) SELECT size(array_agg(p.* ORDER BY id DESC)) AS n, "
    "array_agg(p.* ORDER BY id DESC) FROM p",
    "rows": "SELECT id, struct(posts.*) AS row, to_json(struct(posts.*)) AS one, to_json(posts.*) AS other FROM posts",
    "paired": "SELECT f.follower_id, array_agg(p.* ORDER BY p.id) AS posts, array_agg(f.* ORDER BY p.id) AS follows "
    "FROM follows f LEFT JOIN posts p ON f.followee_id = p.sender_id GROUP BY f.follower_id",
}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def by_hand(posts: dict[int, Row], follows: set[tuple[int, int]]) -> dict[int, list[Row]]:
    """By follower the posts of those followed, newest first and NULL last, those of one time by their columns."""
    found: dict[int, list[Row]] = {}
    for follower, followee in follows:
        for post in posts.values():
            if post["sender_id"] == followee:
                found.setdefault(follower, []).append(post)
    none = datetime.min.replace(tzinfo=UTC)
    return {
        follower: sorted(listed, key=lambda p: (none - (p["timestamp"] or none), p["id"]))
        for follower, listed in found.items()
    }


def test_timelines_are_lists_of_rows_through_changes_of_both_sides(
    tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(3)
    posts: dict[int, Row] = {}
    follows: set[tuple[int, int]] = set()
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(TOPICS)
        ws.sql(TIMELINES)
        for name, select in OTHERS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
        for _ in range(3):
            for number in chance.sample(range(8), 5):
                if number in posts and chance.random() < 0.4:
                    del posts[number]
                    ws.topic("posts").delete([{"id": number}])
                    continue
                posts[number] = {
                    "id": number,
                    "sender_id": chance.choice([1, 2, 3, None]),
                    "text": chance.choice(["a", "b", None]),
                    "timestamp": chance.choice([NOON, NOON + timedelta(minutes=1), None]),
                }
                ws.topic("posts").append([posts[number]])
            for pair in [(chance.randrange(1, 4), chance.randrange(1, 4)) for _ in range(4)]:
                key = {"follower_id": pair[0], "followee_id": pair[1]}
                if pair in follows:
                    follows.remove(pair)
                    ws.topic("follows").delete([key])
                else:
                    follows.add(pair)
                    ws.topic("follows").append([key])
            assert ws.run(tick_rows=chance.choice([3, 100])).stopped == {}
            found = ws.query("SELECT timeline_id, array_agg FROM timelines").to_pylist()
            assert {row["timeline_id"]: row["array_agg"] for row in found} == by_hand(posts, follows)
        assert ws.verify().differences == ()
        columns = {name: ws.view(name).read().schema.names for name in OTHERS}
        assert columns["listed"] == ["sender_id", "sort_array(array_agg(posts.*))"]
        assert columns["named"] == ["n", "array_agg"]
        for row in ws.view("rows").read().to_pylist():
            assert row["row"] == posts[row["id"]]
            assert row["one"] == row["other"]


@pytest.mark.parametrize(
    ("select", "facts", "hint"),
    [
        ("array_agg(posts.*) AS l", {"reason": "depends-on-order"}, "array_agg(x ORDER BY y)"),
        ("array_agg(nobody.* ORDER BY 1) AS l", {"condition": "CANNOT_RESOLVE_STAR_EXPAND"}, None),
        ("array_agg(posts.*, 1 ORDER BY id) AS l", {"reason": "list-arguments"}, "struct(a, b)"),
    ],
)
def test_what_is_wrong_with_a_list_of_rows_is_reported(
    tmp_path: Path, spark: SparkSession, select: str, facts: dict[str, str], hint: str | None
) -> None:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(TOPICS)
        with raises(hw.StatementError, **facts) as refused:
            ws.sql(f"CREATE MATERIALIZED VIEW v AS SELECT {select} FROM posts")
        assert hint is None or hint in (refused.value.hint or "")


def test_what_spark_understands_keeps_its_meaning(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC words (word STRING); CREATE TOPIC pairs (word STRING, n BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW one AS SELECT sort_array(collect_list(words.*)) AS l FROM words")
        ws.sql("CREATE MATERIALIZED VIEW two AS SELECT max_by(pairs.*) AS w FROM pairs")
        ws.topic("words").append([{"word": "b"}, {"word": "a"}])
        ws.topic("pairs").append([{"word": "b", "n": 1}, {"word": "a", "n": 2}])
        ws.run()
        assert ws.view("one").read().to_pylist() == [{"l": ["a", "b"]}]
        assert ws.view("two").read().to_pylist() == [{"w": "a"}]
