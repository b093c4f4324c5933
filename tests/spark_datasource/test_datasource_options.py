"""The options of `format("headwater")`: what they mean, and what is said of wrong ones."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headwater.core.errors import UsageError
from headwater.spark_datasource.options import read_settings, write_settings
from tests.raising import raises

PLACE = {"workspace": "shop", "topic": "clicks"}


def test_a_read_begins_at_the_earliest_record_and_shows_everything() -> None:
    settings = read_settings(PLACE)
    assert settings.starting == "earliest"
    assert settings.columns is None
    assert not settings.metadata
    assert settings.rows_per_trigger is None
    assert settings.on_gap == "fail"


def test_a_workspace_is_found_from_any_folder() -> None:
    assert read_settings(PLACE).place.workspace == os.path.abspath("shop")


def test_names_of_options_ignore_case() -> None:
    options = {"WORKSPACE": "shop", "Topic": "clicks", "maxrowspertrigger": "5", "ongap": "Skip"}
    settings = read_settings(options)
    assert settings.rows_per_trigger == 5
    assert settings.on_gap == "earliest"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("latest", "latest"),
        (" Earliest ", "earliest"),
        ('{"0": 17, "1": 4}', {0: 17, 1: 4}),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31)),
    ],
)
def test_a_read_begins_at_its_start_position(text: str, start: object) -> None:
    assert read_settings({**PLACE, "starting": text}).starting == start


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"topic": "clicks"}, {"option": "workspace", "reason": "missing-option"}),
        ({"workspace": "shop"}, {"option": "topic", "reason": "missing-option"}),
        ({"workspace": "memory:", "topic": "clicks"}, {"option": "workspace", "value": "memory:"}),
        ({**PLACE, "view": "revenue"}, {"reason": "view-and-topic"}),
        ({**PLACE, "maxRowsPerTriger": "5"}, {"option": "maxrowspertriger", "reason": "unknown-option"}),
        ({**PLACE, "zzz": "5"}, {"option": "zzz", "reason": "unknown-option"}),
        ({**PLACE, "maxRowsPerTrigger": "0"}, {"option": "maxRowsPerTrigger", "value": "0"}),
        ({**PLACE, "maxRowsPerTrigger": "many"}, {"option": "maxRowsPerTrigger", "value": "many"}),
        ({**PLACE, "rowsPerTask": "-1"}, {"option": "rowsPerTask", "value": "-1"}),
        ({**PLACE, "metadata": "yes"}, {"option": "metadata", "value": "yes"}),
        ({**PLACE, "onGap": "ignore"}, {"option": "onGap", "value": "ignore"}),
        ({**PLACE, "starting": "yesterday"}, {"option": "starting", "value": "yesterday"}),
        ({**PLACE, "starting": '{"0": "x"}'}, {"option": "starting", "value": '{"0": "x"}'}),
        ({**PLACE, "starting": '{"0": true}'}, {"option": "starting", "value": '{"0": true}'}),
        ({**PLACE, "columns": "user, user"}, {"option": "columns", "value": "user, user"}),
        ({**PLACE, "columns": "user,"}, {"option": "columns", "value": "user,"}),
    ],
)
def test_a_wrong_option_to_read_with_is_refused(options: dict[str, str], facts: dict[str, str]) -> None:
    with raises(UsageError, **facts):
        read_settings(options)


def test_the_hint_for_an_unknown_option_names_known_ones() -> None:
    with raises(UsageError) as close:
        read_settings({**PLACE, "maxRowsPerTriger": "5"})
    assert "maxRowsPerTrigger" in close.value.hint
    with raises(UsageError) as far:
        read_settings({**PLACE, "zzz": "5"})
    assert "workspace, topic, starting" in far.value.hint


@pytest.mark.parametrize(
    ("options", "stream", "facts"),
    [
        ({**PLACE, "starting": "latest"}, True, {"option": "starting", "reason": "unknown-option"}),
        ({**PLACE, "producer": "job"}, True, {"option": "producer", "reason": "batch-only"}),
        ({**PLACE, "producer": "job"}, False, {"producer": "job", "reason": "no-sequence"}),
        ({**PLACE, "sequence": "4"}, False, {"reason": "no-producer"}),
        ({**PLACE, "producer": "job", "sequence": "-4"}, False, {"option": "sequence", "value": "-4"}),
    ],
)
def test_a_wrong_option_to_write_with_is_refused(
    options: dict[str, str], stream: bool, facts: dict[str, str]
) -> None:
    with raises(UsageError, **facts):
        write_settings(options, stream=stream)


def test_options_of_the_query_itself_are_let_through() -> None:
    assert (
        write_settings({**PLACE, "checkpointLocation": "x", "queryName": "q"}, stream=True).producer is None
    )


def test_importing_headwater_loads_no_spark(tmp_path: Path) -> None:
    code = "import sys, headwater; headwater.open('w').close(); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
