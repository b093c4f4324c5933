"""What is said where a library of an extra is missing: here it is hidden; the test of the wheel does without it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.catalog.connectors import SinkDefinition, SourceDefinition
from headwater.cli.program import cli
from headwater.core.extras import EXTRAS, install_command, require, why_missing
from headwater.core.text_analysis import Analysis
from headwater.sinks.registry import guarantee_of, open_target
from headwater.sources.registry import open_source
from tests.raising import raises

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("lake", "postgres", "redis", "search")
URL = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hides the libraries of an extra, as if they were not installed."""

    def hide(extra: str) -> None:
        for module in EXTRAS[extra].modules:
            monkeypatch.setitem(sys.modules, module, None)

    return hide


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_that_is_installed_is_not_missing(extra: str) -> None:
    assert why_missing(extra) is None
    require(extra, "this test")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_error_has_the_command_that_installs_it(extra: str, without: Callable[[str], None]) -> None:
    without(extra)
    with raises(hw.ExtraMissingError, extra=extra, feature="this test") as caught:
        require(extra, "this test")
    assert caught.value.hint == f'pip install "headwater[{extra}]"'
    assert not caught.value.retryable


def test_one_command_installs_several() -> None:
    assert install_command("postgres", "redis") == 'pip install "headwater[postgres,redis]"'


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_is_refused_before_it_is_opened(
    kind: str, without: Callable[[str], None], tmp_path: Path
) -> None:
    without(kind)
    made = SinkDefinition("copy", kind, {"url": URL}, "hits")
    with (
        hw.open("memory:") as ws,
        raises(hw.ExtraMissingError, extra=kind, feature=f"sink 'copy' into {kind.upper()}"),
    ):
        open_target(made, tmp_path, ws.log, {})
    with raises(hw.ExtraMissingError, extra=kind):
        guarantee_of(kind)


def test_a_source_is_refused_and_not_declared(without: Callable[[str], None], tmp_path: Path) -> None:
    without("postgres")
    with hw.open(tmp_path / "shop") as ws:
        with raises(hw.ExtraMissingError, extra="postgres", feature="source 'shop' from Postgres"):
            ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{URL}')")
        assert ws.sql("SHOW SOURCES").num_rows == 0
        with raises(hw.ExtraMissingError, extra="postgres"):
            open_source(SourceDefinition("shop", "postgres", {"url": URL}), ws.log, tmp_path)


def test_a_standing_query_is_refused_and_nothing_of_it_is_made(
    without: Callable[[str], None], tmp_path: Path
) -> None:
    without("search")
    with hw.open(tmp_path / "shop") as ws:
        ws.sql("CREATE TOPIC posts (title STRING)")
        with raises(hw.ExtraMissingError, extra="search", feature="standing query 'news'"):
            ws.sql("CREATE STANDING QUERY news ON posts")
        assert [topic.name for topic in ws.topics()] == ["posts"]
    with raises(hw.ExtraMissingError, extra="search", feature="text analysis"):
        Analysis(language="english").analyzer()


def test_doctor_names_what_is_not_installed(without: Callable[[str], None], tmp_path: Path) -> None:
    without("postgres")
    without("redis")
    result = CliRunner(env={"COLUMNS": "300"}).invoke(cli, ["doctor"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "lake, search, otel; not installed: postgres (sources and sinks of Postgres); redis" in " ".join(
        result.output.split()
    )
    assert install_command("postgres", "redis") in result.output
    result = CliRunner().invoke(cli, ["doctor", URL], catch_exceptions=False)
    assert result.exit_code == 1
    assert install_command("postgres") in result.output
