"""The table that `headwater run` shows at a terminal."""

from __future__ import annotations

import io

import headwater as hw
from headwater.cli.overview import Line, Overview, table_of


def test_rows_rates_and_lags_are_shown_from_one_sample_to_the_next() -> None:
    with hw.open("memory:") as ws:
        ws.sql("CREATE TOPIC clicks (user BIGINT); CREATE TOPIC _own (user BIGINT)")
        ws.topic("clicks").append([{"user": 1}])
        overview = Overview(ws.log)
        sink = {"status": {"state": "following", "applied_rows": 10}, "lag": {"rows": 3}}
        first = overview.sample(None, {}, {"cache": sink}, 1_000.0)
        assert first == [
            Line("topic", "clicks", "", 1),
            Line("sink", "cache", "following", 10, None, 3),
        ], "no rate at first, and nothing of the workspace's own"
        ws.topic("clicks").append([{"user": 1}] * 500)
        restarted = {"status": {"state": "retrying", "applied_rows": 2}, "lag": {"rows": 5}}
        source = {"hook": {"rows": 1, "up": False}, "shop": {"rows": 7, "up": True}}
        second = overview.sample(None, source, {"cache": restarted}, 3_000.0)
        assert second == [
            Line("source", "hook", "failed", 1),
            Line("source", "shop", "running", 7),
            Line("topic", "clicks", "", 501, 250.0),
            Line("sink", "cache", "retrying", 2, 0.0, 5),
        ]


def test_names_are_shown_as_they_are() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=80)
    console.print(table_of([Line("topic", "a[red]b", "", 1_234_567, 250.4)], "tick 3: [bold]"))
    assert isinstance(console.file, io.StringIO)
    table, line = console.file.getvalue().rstrip("\n").splitlines()[1:]
    assert table.split() == ["topic", "a[red]b", "1,234,567", "250"]
    assert line.rstrip() == "tick 3: [bold]"
