"""The command line of the benchmarks: measures subjects, prints and stores what was found, writes the docs page."""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, report
from benchmarks.harness import Bench

SUBJECTS = (
    "appending",
    "writers",
    "reading",
    "seeking",
    "opening",
    "upkeep",
    "following",
    "views",
    "ticks",
    "backlog",
    "pacing",
    "cluster",
    "windows",
    "skew",
    "sketches",
    "capture",
    "statsd",
    "serving",
    "overload",
    "sinks",
    "events",
    "queues",
    "deletion",
    "standing",
    "patterns",
)
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "latest.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"


def main(arguments: list[str] | None = None) -> None:
    """Measure the subjects named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="NAME", help=f"of {', '.join(SUBJECTS)}; all if left out"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that it works, measures nothing"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only cases with this in their names (views, windows)"
    )
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if left out")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="where results are kept (default: %(default)s)"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="write docs/benchmarks.md from the results kept"
    )
    given = parser.parse_args(arguments)
    unknown = [name for name in given.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"there is no subject {unknown[0]!r}; there are {', '.join(SUBJECTS)}")
    if given.write_docs:
        stored = json.loads(given.out.read_text(encoding="utf-8"))
        PAGE.write_text(report.page(stored["machine"], stored["subjects"]), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=given.folder) as folder:
        found = measure(given.subjects or SUBJECTS, Path(folder), quick=given.quick, only=given.only)
        if not given.quick or given.out != RESULTS:
            store(given.out, machine.describe(Path(folder)), found, whole=not given.only)


def measure(
    names: tuple[str, ...] | list[str], folder: Path, *, quick: bool, only: str = ""
) -> dict[str, dict[str, Any]]:
    """Run subjects and print their rows; what is stored of each, by name."""
    printer = report.Printer(Console())
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        subject = import_module(f"benchmarks.{name}")
        printer.title(name, subject.TITLE)
        bench = Bench(name, folder, quick, printer.row, only)
        subject.run(bench)
        printer.flush()
        found[name] = {"title": subject.TITLE, "rows": [row.to_json() for row in bench.rows]}
    return found


def store(path: Path, where: dict[str, str], found: dict[str, dict[str, Any]], *, whole: bool = True) -> None:
    """Keep results; what was not measured now stays as it was, subjects in the order of SUBJECTS. `whole`: a subject
    that was measured has no other rows any more."""
    known = json.loads(path.read_text(encoding="utf-8"))["subjects"] if path.exists() else {}
    if not whole:
        for name, subject in found.items():
            subject["rows"] = _replaced(known.get(name, {}).get("rows", []), subject["rows"])
    merged = {**known, **found}
    ordered = {name: merged[name] for name in SUBJECTS if name in merged}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": where, "subjects": ordered}, indent=2) + "\n", encoding="utf-8")


def _replaced(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, with the groups that were measured again in the places that they had; others come last."""
    again: dict[str, list[dict[str, Any]]] = {}
    for row in new:
        again.setdefault(row["group"], []).append(row)
    rows: list[dict[str, Any]] = []
    for row in old:
        if row["group"] in {r["group"] for r in new}:
            rows += again.pop(row["group"], [])
        else:
            rows.append(row)
    return rows + [row for rest in again.values() for row in rest]


if __name__ == "__main__":
    main()
