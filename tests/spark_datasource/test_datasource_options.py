"""The options of `format("headwater")`: what they mean, and what is said of wrong ones."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headwater.core.errors import UsageError
from headwater.spark_datasource.options import read_settings, write_settings

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
def test_a_read_begins_where_it_is_told_to(text: str, start: object) -> None:
    assert read_settings({**PLACE, "starting": text}).starting == start


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "clicks"}, "option workspace is missing"),
        ({"workspace": "shop"}, "option topic is missing"),
        ({"workspace": "memory:", "topic": "clicks"}, "in memory cannot be reached"),
        ({**PLACE, "view": "revenue"}, "exclude each other"),
        ({**PLACE, "maxRowsPerTriger": "5"}, "did you mean maxRowsPerTrigger"),
        ({**PLACE, "zzz": "5"}, "the options are workspace, topic, starting"),
        ({**PLACE, "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is a whole number from 1 up, not '0'"),
        ({**PLACE, "maxRowsPerTrigger": "many"}, "not 'many'"),
        ({**PLACE, "rowsPerTask": "-1"}, "rowsPerTask is a whole number"),
        ({**PLACE, "metadata": "yes"}, "metadata is 'true' or 'false', not 'yes'"),
        ({**PLACE, "onGap": "ignore"}, "onGap is 'fail' or 'skip', not 'ignore'"),
        ({**PLACE, "starting": "yesterday"}, "does not say where to begin: 'yesterday'"),
        ({**PLACE, "starting": '{"0": "x"}'}, "does not say where to begin"),
        ({**PLACE, "starting": '{"0": true}'}, "does not say where to begin"),
        ({**PLACE, "columns": "user, user"}, "a list of different names"),
        ({**PLACE, "columns": "user,"}, "a list of different names"),
    ],
)
def test_a_wrong_option_to_read_with_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "stream", "message"),
    [
        ({**PLACE, "starting": "latest"}, True, "not an option to write a topic with"),
        ({**PLACE, "producer": "job"}, True, "option producer is for batch writes"),
        ({**PLACE, "producer": "job"}, False, "producer 'job' needs a sequence"),
        ({**PLACE, "sequence": "4"}, False, "sequence and epoch belong to a producer"),
        ({**PLACE, "producer": "job", "sequence": "-4"}, False, "a whole number from 0 up"),
    ],
)
def test_a_wrong_option_to_write_with_is_refused(options: dict[str, str], stream: bool, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        write_settings(options, stream=stream)
    assert message in str(caught.value)


def test_options_of_the_query_itself_are_let_through() -> None:
    assert (
        write_settings({**PLACE, "checkpointLocation": "x", "queryName": "q"}, stream=True).producer is None
    )


def test_importing_headwater_loads_no_spark(tmp_path: Path) -> None:
    code = "import sys, headwater; headwater.open('w').close(); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
