"""The log at work: a million clicks from two processes, one of them killed half-way, and nothing lost or doubled.

Run it with `make demo-log`, or `python examples/log_demo.py --rows 100000`. It ends with status 0 only if every click is
in the log exactly once and every checksum holds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import headwater as hw
from headwater.log.topic import Topic

PRODUCERS = ("east", "west")
BATCHES, BATCH_ROWS_MAX = 100, 5_000
BEGIN = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
CLICKS_PER_SECOND = 250
CREATE = """
    CREATE TOPIC clicks (
      id BIGINT NOT NULL, user BIGINT NOT NULL, url STRING, at TIMESTAMP,
      WATERMARK FOR at AS at - INTERVAL '10 seconds'
    ) WITH (partitions = 4, partition_by = 'user');
    CREATE TOPIC customers (id BIGINT, name STRING, visits BIGINT, PRIMARY KEY (id)) WITH (cleanup = 'compact')
"""
console = Console(width=None if sys.stdout.isatty() else 80, highlight=False)


# --- a producer: a process of its own ---------------------------------------------------------------------------


def clicks(producer: int, first: int, rows: int) -> pa.Table:
    """Clicks of a producer from its `first` on: the same whenever they are made, so that they can be sent again."""
    random = np.random.default_rng((producer, first))
    ids = (np.arange(rows) + first) * len(PRODUCERS) + producer
    pages = pc.cast(pa.array(random.integers(1, 2_000, rows)), pa.string())
    begin_us = int(BEGIN.timestamp() * 1e6)
    return pa.table(
        {
            "id": ids,
            "user": random.integers(1, 50_000, rows),
            "url": pc.binary_join_element_wise("/products", pages, "reviews?from=newsletter", "/"),
            "at": pa.array(begin_us + ids * (1_000_000 // CLICKS_PER_SECOND)).cast(pa.timestamp("us", "UTC")),
        }
    )


def produce(folder: str, number: int, rows: int, epoch: int) -> None:
    """Append every batch from the first on. What an earlier life of this producer wrote is answered, not written."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with hw.open(folder) as ws:
        topic = ws.topic("clicks")
        ends = {p: info.end for p, info in topic.partitions().items()}
        size = max(1, min(BATCH_ROWS_MAX, rows // BATCHES))
        for sequence, first in enumerate(range(0, rows, size)):
            batch = clicks(number, first, min(size, rows - first))
            receipt = topic.append(batch, producer=PRODUCERS[number], sequence=sequence, epoch=epoch)
            positions = receipt.positions["clicks"]
            known = all(first < ends[p] for p, (first, _) in positions.items())
            print("known" if known else "wrote", batch.num_rows, flush=True)


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the demo is gone, however it went
    os._exit(1)


class Producer:
    """A producer process, and what it has said so far."""

    def __init__(
        self, folder: Path, number: int, rows: int, said: Callable[[int], None], epoch: int = 0
    ) -> None:
        self.known = self.wrote = 0
        self._said = said
        self._process = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--producer",
                str(number),
                str(epoch),
                "--rows",
                str(rows),
                "--folder",
                folder,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            what, _, rows = line.partition(" ")
            self.known += int(rows) if what == "known" else 0
            self.wrote += int(rows) if what == "wrote" else 0
            self._said(self.known + self.wrote)

    def kill(self) -> None:
        """As the kernel does it when memory runs out: no goodbye."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._listener.join()

    def wait(self) -> None:
        """Until it is done; RuntimeError if it failed."""
        self._listener.join()
        if self._process.wait():
            raise RuntimeError(f"a producer ended with status {self._process.returncode}")

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None


# --- the story ----------------------------------------------------------------------------------------------------


def append_and_kill(folder: Path, rows: int) -> dict[str, str]:
    """Two producers; the second is killed once half of its clicks are acknowledged, and started again."""
    shares = [rows - rows // 2, rows // 2]
    started = time.perf_counter()
    with Bars() as bars, contextlib.ExitStack() as stack:
        halfway = threading.Event()
        tell = [bars.add(f"producer {name}", share) for name, share in zip(PRODUCERS, shares, strict=True)]

        def second(done: int) -> None:
            tell[1](done)
            if done >= shares[1] / 2:
                halfway.set()

        east = Producer(folder, 0, shares[0], tell[0])
        stack.callback(east.kill)
        west = Producer(folder, 1, shares[1], second)
        stack.callback(west.kill)
        while not halfway.wait(0.02):
            if not west.alive:
                break
        west.kill()
        say(f"  [red]kill -9[/red] of producer west after {west.wrote:,} acknowledged clicks")
        again = Producer(folder, 1, shares[1], tell[1], epoch=1)
        stack.callback(again.kill)
        say("  started again: it sends everything from its first batch on")
        east.wait()
        again.wait()
    seconds = time.perf_counter() - started
    return {
        "appended": f"{rows:,} clicks in {seconds:.1f} s, on disk before each was acknowledged",
        "killed": f"producer west, with kill -9, after {west.wrote:,} clicks",
        "resumed": f"{again.known:,} clicks already known, {again.wrote:,} new",
    }


def tail(topic: Topic) -> None:
    """The last rows of each partition."""
    ends = {p: max(info.first, info.end - 2) for p, info in topic.partitions().items()}
    table = Table(box=None, pad_edge=True, header_style="dim")
    for heading in ("partition", "offset", "user", "at", "url"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("offset", "user") else "left")
    for batch in topic.read(ends):
        for row in batch.to_pylist():
            shown = (row["_partition"], f"{row['_offset']:,}", row["user"], f"{row['at']:%H:%M:%S.%f}"[:-3])
            table.add_row(*map(str, shown), row["url"][:32])
    console.print(table)


def seek(topic: Topic, rows: int) -> dict[str, str]:
    """Find a moment in the middle by the index."""
    moment = BEGIN + timedelta(seconds=rows / CLICKS_PER_SECOND / 2)
    cursor = topic.cursor("replay")
    cursor.seek(BEGIN, by="event")
    started = time.perf_counter()
    positions = cursor.seek(moment, by="event")
    taken = (time.perf_counter() - started) * 1e3
    batch = next(iter(cursor.read(columns=["at"])))
    say(
        f"  clicks from {moment:%H:%M:%S} on begin at offsets {', '.join(f'{o:,}' for o in positions.values())}"
    )
    say(f"  the first batch there begins at {batch.column('at')[0].as_py():%H:%M:%S.%f}")
    return {"sought": f"{moment:%H:%M:%S} among {rows:,} clicks in {taken:.1f} ms, position stored"}


def compact(ws: hw.Workspace, rows: int) -> tuple[dict[str, str], bool]:
    """Many versions of few customers; what stays is the last of each."""
    customers, keys = ws.topic("customers"), max(10, rows // 100)
    random = np.random.default_rng(5)
    latest: dict[int, int] = {}
    for visit in range(1, 6):
        ids = random.integers(0, keys, max(20, rows // 20))
        names = pc.binary_join_element_wise("customer", pc.cast(pa.array(ids), pa.string()), " ")
        customers.append(pa.table({"id": ids, "name": names, "visits": np.full(len(ids), visit)}))
        latest.update(dict.fromkeys(ids.tolist(), visit))
    gone = sorted(latest)[: max(1, keys // 100)]
    customers.delete([{"id": key} for key in gone])
    before = sum(info.rows for info in customers.partitions().values())
    report = ws.maintain()
    after = sum(info.rows for info in customers.partitions().values())
    found = {row["id"]: row for batch in customers.read() for row in batch.to_pylist()}
    ok = found.keys() == latest.keys() and all(
        row["_op"] == "delete" if key in gone else row["visits"] == latest[key] for key, row in found.items()
    )
    say(
        f"  {before:,} records of {len(latest):,} customers became {after:,}, {len(gone):,} of them deletions"
    )
    say(f"  and {report.sealed} segments were sealed as Parquet")
    return {"compacted": f"{before:,} customer records to {after:,}, every offset where it was"}, ok


def verify(ws: hw.Workspace, folder: Path) -> tuple[dict[str, str], bool]:
    """Read every byte and check it."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with Bars(unit="bytes") as bars:
        tell = bars.add("checksums", size)
        found = ws.verify(progress=tell)
        tell(size)
    for finding in found.differences:
        say(f"  [red]{finding.file}: {finding.message}[/red]")
    said = "every checksum holds" if found.ok else f"{len(found.differences)} findings"
    return {"verified": f"{found.bytes_checked / 1e6:,.0f} MB, {said}"}, found.ok


def exactly_once(topic: Topic, rows: int) -> tuple[dict[str, str], bool]:
    """Whether every click is there, and once."""
    started = time.perf_counter()
    read = pa.chunked_array([batch.column("id") for batch in topic.read(columns=["id"])], pa.int64())
    seconds = time.perf_counter() - started
    counts = np.bincount(read.to_numpy(), minlength=rows)
    missing, twice, strange = int((counts == 0).sum()), int((counts > 1).sum()), len(counts) - rows
    ok = not (missing or twice or strange)
    said = "each exactly once" if ok else f"{missing:,} missing, {twice:,} doubled, {strange:,} unknown"
    return {"counted": f"{len(read):,} clicks, {said} (read in {seconds:.2f} s)"}, ok


# --- what a person sees -------------------------------------------------------------------------------------------


class Bars:
    """Progress: bars on a terminal, a line at each quarter elsewhere."""

    def __init__(self, unit: str = "rows") -> None:
        columns = (TextColumn("  {task.description:<14}"), BarColumn(28), TimeElapsedColumn())
        counts = (MofNCompleteColumn(),) if unit == "rows" else ()
        self._progress = Progress(*columns, *counts, console=console) if console.is_terminal else None
        self._quarters: dict[str, int] = {}

    def __enter__(self) -> Bars:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def add(self, name: str, total: int) -> Callable[[int], None]:
        """A bar; call what is returned with how much is done."""
        if self._progress:
            task, bars = self._progress.add_task(name, total=total), self._progress
            return lambda done: bars.update(task, completed=done)

        def line(done: int) -> None:
            quarter = min(4, done * 4 // max(1, total))
            if quarter > self._quarters.get(name, 0):
                self._quarters[name] = quarter
                say(f"  {name}: {quarter * 25}%")

        return line


def say(text: str) -> None:
    """A line."""
    console.print(text, soft_wrap=True)


@contextlib.contextmanager
def chapter(title: str) -> Iterator[None]:
    """A heading, and how long it took."""
    console.print(f"\n[bold]{title}[/bold]")
    started = time.perf_counter()
    yield
    console.print(f"  [dim]{time.perf_counter() - started:.1f} s[/dim]")


def fresh(folder: Path) -> Path:
    """An empty folder: that of an earlier demo is removed, anything else is left alone."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "headwater.json").exists():
            sys.exit(f"{folder} is not empty and not a workspace: choose another --folder")
        shutil.rmtree(folder)
    return folder


def main() -> int:
    """Tell the story; 0 if it ends well."""
    parser = argparse.ArgumentParser(description="Show the log at work.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many clicks (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path("demo"), help="where to put the workspace (default: demo)"
    )
    parser.add_argument("--producer", type=int, nargs=2, metavar=("NUMBER", "EPOCH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.producer:
        produce(str(given.folder), given.producer[0], given.rows, given.producer[1])
        return 0
    folder = fresh(given.folder)
    console.print(f"[bold]Headwater[/bold]: {given.rows:,} clicks in [cyan]{folder}/[/cyan]")
    with hw.open(folder) as ws:
        ws.sql(CREATE)
        topic = ws.topic("clicks")
        with chapter("Two processes append; one of them dies half-way"):
            facts = append_and_kill(folder, given.rows)
        with chapter("The last clicks of each partition"):
            tail(topic)
        with chapter("Back to the middle of the morning"):
            facts |= seek(topic, given.rows)
        with chapter("A table of customers, compacted"):
            said, compacted = compact(ws, given.rows)
            facts |= said
        with chapter("Every byte, checked"):
            said, whole = verify(ws, folder)
            facts |= said
        said, once = exactly_once(topic, given.rows)
        facts |= said
    ok = compacted and whole and once
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(f"[dim]{name}[/dim]", value)
    title = "[green]nothing lost, nothing doubled[/green]" if ok else "[red]something is wrong[/red]"
    console.print()
    console.print(Panel(table, title=title, width=min(console.width, 80), padding=(1, 2)))
    say(f"Look around: [cyan]headwater --workspace {folder} topics[/cyan]")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
