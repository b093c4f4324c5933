"""An atomic append larger than what is kept in memory: staged on disk, visible all at once."""

import subprocess
import sys
from pathlib import Path

import pytest

import headwater as hw
from headwater.log.embedded.staging import FOLDER

SCRIPT = """
import resource, sys
import numpy as np, pyarrow as pa
import headwater as hw
from headwater.core.settings import LogSettings

BATCHES, ROWS = 60, 20_000  # 60 batches of about 5 MB

def batches(seen):
    for n in range(BATCHES):
        if n == BATCHES - 1:
            seen.append(sum(info.end for name in ("a", "b") for info in ws.topic(name).partitions().values()))
        text = pa.array([f"{n}-{i:06d}-" + "x" * 230 for i in range(ROWS)])
        yield pa.record_batch({"n": pa.array(np.arange(ROWS) + n * ROWS), "text": text})

settings = LogSettings(durability="os", staging_bytes_max=8 << 20, maintenance_every_ms=0)
with hw.open(sys.argv[1], settings=settings) as ws:
    ws.topic("a", "n BIGINT, text STRING", partitions=2, partition_by="n")
    ws.topic("b", "n BIGINT, text STRING")
    ws.append({"a": [{"n": -1, "text": "warm"}], "b": [{"n": -1, "text": "warm"}]})
    next(iter(batches([])))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = []
    receipt = ws.append({"a": batches(seen), "b": [{"n": 7, "text": "with it"}]}, producer="loader", sequence=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(receipt.rows, seen, grown // 1024 if sys.platform != "darwin" else grown >> 20)
"""


@pytest.mark.slow
def test_it_takes_little_memory_and_is_there_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "w"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True, timeout=200
    )
    rows, seen, grown_mb = done.stdout.split()
    assert int(rows) == 60 * 20_000 + 1
    assert seen == "[2]", "before the commit only the rows from before are visible"
    assert int(grown_mb) < 150, f"300 MB were appended and {grown_mb} MB more memory was used"
    with hw.open(path) as ws:
        numbers = sorted(
            n for batch in ws.topic("a").read(columns=["n"]) for n in batch.column("n").to_pylist()
        )
        assert numbers == list(range(-1, 60 * 20_000))
        assert [n for batch in ws.topic("b").read() for n in batch.column("n").to_pylist()] == [-1, 7]
        assert list((path / FOLDER).iterdir()) == []
        assert ws.verify().ok
