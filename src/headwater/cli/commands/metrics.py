"""`headwater metrics`: the metrics of a workspace, for a person with grep, or a collector that runs commands."""

from __future__ import annotations

from typing import Any

import click

from headwater.cli.output import print_json
from headwater.cli.session import CommandSession, json_option, pass_session


@click.command()
@json_option
@pass_session
def metrics(session: CommandSession, as_json: bool) -> None:
    """Print metrics in the Prometheus text format.

    Rows, lags, ticks by phase, watermarks, sources, sinks and disk.
    """
    with session.open() as ws:
        text = ws.metrics()
    if not as_json:
        click.echo(text, nl=False)
        return
    from prometheus_client.parser import text_string_to_metric_families

    found: list[dict[str, Any]] = [
        {"metric": sample.name, "labels": sample.labels, "value": sample.value}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    print_json(found)
