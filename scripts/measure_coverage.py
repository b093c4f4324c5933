"""Measures which lines and branches of the package the tests run, also in child processes, and prints the least covered modules.

    python scripts/measure_coverage.py [--workers 3] [--append] [tests/log ...]

Folders of `tests/` have the tree of the package: for a part of the tests, the report is about the same part of the package.
`--append` adds to what earlier runs have measured, and reports on all of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/headwater")
REPORT = Path("build/coverage/coverage.json")
LEAST = 10
"""How many of the least covered modules are printed."""
TIMEOUT_S = 900
"""Timeout of one test; measured code takes about twice as long."""


def covered_packages(tests: Iterable[str]) -> list[str]:
    """The folders and modules of the package that tests are about, as patterns; empty if one is about the whole package."""
    found = []
    for test in tests:
        folder = Path(test.partition("::")[0])
        folder = folder.parent if folder.suffix else folder
        twin = PACKAGE / folder.relative_to("tests") if folder.parts[:1] == ("tests",) else PACKAGE
        if twin == PACKAGE or not (ROOT / twin).is_dir():
            return []
        found.append(f"{twin.as_posix()}/*")
    return found


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """The totals of a report of `coverage json`, and the least covered modules, the least first."""
    totals = report["totals"]
    lines = [
        f"lines     {_share(totals['covered_lines'], totals['num_statements'])}",
        f"branches  {_share(totals['covered_branches'], totals['num_branches'])}",
        "",
        "least covered modules (lines and branches together)",
    ]
    summaries = {name: file["summary"] for name, file in report["files"].items()}
    least = sorted(summaries, key=lambda name: (summaries[name]["percent_covered"], name))[:LEAST]
    for name in least:
        summary = summaries[name]
        missing = f"{summary['missing_lines']} lines and {summary['missing_branches']} branches not run"
        lines.append(f"{summary['percent_covered']:6.1f} %  {name}: {missing}")
    return lines


def _share(covered: int, all_: int) -> str:
    return f"{100 * covered / all_ if all_ else 100:5.1f} %  ({covered:,} of {all_:,})"


def coverage(*arguments: str) -> int:
    """Run a command of coverage.py in the repository, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the tests and print the report; the exit code is that of the tests."""
    parser = argparse.ArgumentParser(description="Measure the coverage of tests.")
    parser.add_argument("tests", nargs="*", default=["tests"])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--append", action="store_true")
    given = parser.parse_args(arguments)
    (ROOT / REPORT).parent.mkdir(parents=True, exist_ok=True)
    if not given.append:
        coverage("erase")
    options = ["-n", str(given.workers), "-m", "not long", f"--timeout={TIMEOUT_S}", "-q"]
    failed = coverage("run", "-m", "pytest", *options, *given.tests)
    coverage("combine", "--quiet", "--append")
    packages = [] if given.append else covered_packages(given.tests)
    include = [f"--include={','.join(packages)}"] if packages else []
    if coverage("json", "--quiet", "-o", str(REPORT), *include):
        return 1
    print("\n".join(lines_of(json.loads((ROOT / REPORT).read_text(encoding="utf-8")))))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
