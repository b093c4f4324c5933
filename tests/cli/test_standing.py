"""`headwater standing`: queries stored, listed and removed from a shell, without a JVM."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, spark: Any) -> Path:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC articles (title STRING, price DOUBLE)")
        ws.sql("CREATE STANDING QUERY news ON articles")
    return tmp_path / "ws"


def run(folder: Path, *words: str, status: int = 0) -> str:
    done = CliRunner().invoke(cli, ["-w", str(folder), *words])
    assert done.exit_code == status, done.output
    return done.output


def rows(folder: Path, *words: str) -> Any:
    return json.loads(run(folder, *words, "--json"))


def test_queries_are_stored_listed_and_removed(folder: Path) -> None:
    assert "stored spark" in run(folder, "standing", "news", "add", "spark", "title:spark", "--owner", "ann")
    cheap = ("cheap", "price < 10", "--sql", "--backfill", "7 days")
    assert rows(folder, "standing", "news", "add", *cheap)["id"] == "cheap"
    (shown,) = rows(folder, "standing")
    assert (shown["standing_query"], shown["documents"], shown["stored"]) == ("news", "articles", 2)
    listed = rows(folder, "standing", "news", "list")
    assert [(row["id"], row["kind"], row["owner"], row["backfill"]) for row in listed] == [
        ("cheap", "sql", None, "7 days"),
        ("spark", "lucene", "ann", None),
    ]
    run(folder, "standing", "news", "remove", "cheap")
    for words in (("--json", "news"), ("news", "--json"), ("news", "list", "--json")):
        assert [row["id"] for row in json.loads(run(folder, "standing", *words))] == ["spark"]
    assert len(rows(folder, "standing", "news", "--history")) == 3
    assert "title:spark" in run(folder, "standing", "news")
    assert "Usage:" in run(folder, "standing", "news", "--help")
    history = rows(folder, "standing", "news", "list", "--history")
    assert [(row["id"], row["removed"]) for row in history] == [
        ("spark", False),
        ("cheap", False),
        ("cheap", True),
    ]


def test_a_mistake_is_shown_where_it_is(folder: Path) -> None:
    said = run(folder, "standing", "news", "add", "x", "title:(spark", status=2)
    assert "not closed" in said
    assert "      ^" in said
    assert "allow_scans" in run(folder, "standing", "news", "add", "x", "*:*", status=2)
    run(folder, "standing", "news", "add", "x", "*:*", "--allow-scans")
    assert "there is no standing query 'olds'" in run(folder, "standing", "olds", "list", status=1)
