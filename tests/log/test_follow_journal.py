"""Following other processes through journals that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog.definitions import define_topic
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.log.embedded.journal import recovery
from tests.crash.script import append

SMALL = LogSettings(checkpoint_bytes=2_000, inline_bytes_max=500, maintenance_every_ms=0)


def write_on(log: EmbeddedLog, journals: int) -> int:
    """Append until so many journals more were begun, by which older ones are removed; how many rows came to be."""
    count, before = 0, log.core.journal.number
    while log.core.journal.number < before + journals:
        append(log, {"t": [{"n": count}]})
        count += 1
    return count


@pytest.mark.parametrize("where", ["load", "begin_of"])
def test_journals_may_be_removed_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    writer = EmbeddedLog.open(str(tmp_path / "ws"), settings=SMALL)
    writer.create_topic(define_topic("t", pa.schema([("n", pa.int64())])))
    reader = EmbeddedLog.open(str(tmp_path / "ws"), settings=SMALL)
    rows = write_on(writer, 4 if where == "load" else 1)
    honest = getattr(recovery, where)
    more: list[int] = []

    def slow(*given: Any) -> Any:
        found = honest(*given)
        if not more:
            more.append(0)
            more[0] = write_on(writer, 4)
        return found

    monkeypatch.setattr(recovery, where, slow)
    assert sum(reader.ends(["t"])["t"].values()) == rows + more[0] > rows
    append(reader, {"t": [{"n": -1}]})
    assert sum(writer.ends(["t"])["t"].values()) == rows + more[0] + 1
    reader.close()
    writer.close()
