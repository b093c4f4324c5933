"""Two checkouts of Headwater, measured side by side: `python -m benchmarks.against OTHER SUBJECT [SUBJECT ...]`.

Each checkout runs its own benchmarks on its own sources, in alternating rounds, so that a noisy moment of the machine hits
both. Every figure is taken once a round, and other systems are left out. The table shows the median of each checkout and their
ratio; above 1 this checkout is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import LOWER_IS_BETTER
from benchmarks.report import figure

HERE = Path(__file__).resolve().parent.parent
ONE_RUN = """
import sys, time

if sys.argv.pop(1) == "cpu":
    time.perf_counter = time.process_time

from benchmarks import harness, sides, ticks

state_max = int(sys.argv.pop(1))
one_size = ticks._one_size
ticks._one_size = lambda bench, query, size: one_size(bench, query, size) if size <= state_max else [1.0]
harness.Bench.runs = property(lambda self: 1)
sides.structured_streaming = sides.anew = lambda *_, **__: 1e-9  # slower than all: a second round is not worth it
sides.warm = lambda *_: None

from benchmarks.__main__ import main

main(sys.argv[1:])
"""
"""One round of a checkout, whose other systems take no time. The first arguments are the clock (`cpu` or `wall`) and the
largest state of `ticks`."""

Figures = dict[tuple[str, str, str, str], list[float]]
"""By subject, group, name and unit."""


def main(arguments: list[str] | None = None) -> None:
    """Measure both checkouts and print the table; exits with 1 where this one is slower than `--slower-max` allows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("subjects", nargs="+", metavar="SUBJECT")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this in their names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--state-max", type=int, default=50_000_000, metavar="ROWS", help="the largest state of `ticks`"
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="measure the CPU time of the Python process instead of the time that passes: for machines with other work to do",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument(
        "--slower-max", type=float, metavar="PERCENT", help="exit with 1 if a figure is slower by more"
    )
    given = parser.parse_args(arguments)
    checkouts = {"other": given.other.resolve(), "this": HERE}
    figures: dict[str, Figures] = {name: {} for name in checkouts}
    options = [
        "cpu" if given.cpu else "wall",
        str(given.state_max),
        "--only",
        given.only,
        *(["--quick"] if given.quick else []),
    ]
    for number in range(given.rounds):
        for name, checkout in checkouts.items():
            print(f"round {number + 1} of {given.rounds}: {checkout}", file=sys.stderr, flush=True)
            for key, value in measure(checkout, [*options, *given.subjects]).items():
                figures[name].setdefault(key, []).append(value)
    slower = show(figures["other"], figures["this"])
    if given.slower_max is not None and slower > given.slower_max:
        sys.exit(f"a figure is {slower:.1f}% slower than that of {given.other}")


def measure(checkout: Path, options: Sequence[str]) -> Mapping[tuple[str, str, str, str], float]:
    """The figures of one round of a checkout."""
    paths = os.pathsep.join([str(checkout / "src"), str(checkout)])
    with tempfile.TemporaryDirectory(prefix="headwater-against-") as folder:
        out = Path(folder) / "found.json"
        subprocess.run(
            [sys.executable, "-c", ONE_RUN, *options, "--out", str(out)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        subjects = json.loads(out.read_text(encoding="utf-8"))["subjects"]
    return {
        (name, row["group"], row["name"], row["unit"]): row["median"]
        for name, subject in subjects.items()
        for row in subject["rows"]
    }


def show(other: Figures, this: Figures) -> float:
    """Print the table; the largest loss of this checkout in per cent, 0 if there is none."""
    table = Table()
    for heading in ("", "unit", "other", "this", "ratio"):
        table.add_column(heading, justify="left" if heading in ("", "unit") else "right")
    worst = 0.0
    for key in (key for key in other if key in this):
        subject, group, name, unit = key
        before, now = statistics.median(other[key]), statistics.median(this[key])
        ratio = (before / now if unit in LOWER_IS_BETTER else now / before) if before and now else 1.0
        worst = max(worst, (1 / ratio - 1) * 100)
        table.add_row(
            f"{subject}: {group}: {name}", unit, figure(before, unit), figure(now, unit), f"{ratio:.2f}"
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return worst


if __name__ == "__main__":
    main()
