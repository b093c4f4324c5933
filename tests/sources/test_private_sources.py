"""Columns of sources that are PRIVATE: what comes in is encrypted before it is written, also where it stands a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.sources.files.options import columns_topic, read_options
from headwater.sources.python_source import _topic
from headwater.sources.webhook_source import WebhookSource
from tests.raising import raises

COLUMNS = "id BIGINT NOT NULL, email STRING PRIVATE BY (id), city STRING"


def files(columns: str, **options: Any) -> Any:
    given = {"path": "in/*.json", "columns": columns, **options}
    return columns_topic("people", read_options("people", given))


def webhook(columns: str) -> Any:
    return WebhookSource("people", {"secret": "x" * 24, "columns": columns}).topic


@pytest.mark.parametrize("made", [files(COLUMNS), _topic("people", COLUMNS)], ids=["files", "python"])
def test_a_source_makes_its_topic_as_private_as_it_says(made: Any) -> None:
    assert made.private == (("email", "id"),)


def test_the_body_of_a_delivery_is_as_private_as_its_columns() -> None:
    topic = webhook(COLUMNS)
    assert topic.private == (("body", "id"), ("email", "id"))
    assert topic.schema.field("body").nullable
    assert not webhook("id BIGINT NOT NULL").schema.field("body").nullable
    with raises(hw.UsageError, source="people", subjects=("id", "shop")):
        webhook(f"{COLUMNS}, shop BIGINT NOT NULL, owner STRING PRIVATE BY (shop)")


def test_lines_that_are_diverted_would_be_in_plain_and_are_refused() -> None:
    with raises(hw.UsageError, option="on_error"):
        files(COLUMNS, on_error="divert")


def test_lines_for_a_private_topic_of_the_users_own_are_not_diverted_either(tmp_path: Path) -> None:
    with hw.open("memory:") as ws:
        ws.sql(f"CREATE TOPIC people ({COLUMNS})")
        options = f"path = '{tmp_path}/*.json', topic = 'people'"
        with raises(hw.UsageError, source="s", option="on_error"):
            ws.sql(f"CREATE SOURCE s FROM FILES WITH ({options}, on_error = 'divert')")
        ws.sql(f"CREATE SOURCE s FROM FILES WITH ({options})")


def test_a_column_that_was_once_not_null_reads_null_when_it_is_forgotten() -> None:
    """Of topics that were made before that was refused."""
    from headwater.catalog.definitions import TopicDefinition, define_topic
    from headwater.sql.parser import parse_columns

    said = parse_columns(COLUMNS)
    plain = define_topic("people", said.schema, private=said.private).to_json()
    plain["columns"] = [
        [name, kind, nullable and name != "email"] for name, kind, nullable in plain["columns"]
    ]
    again = TopicDefinition.from_json(plain)
    assert again.schema.field("email").nullable
    assert not again.schema.field("id").nullable
