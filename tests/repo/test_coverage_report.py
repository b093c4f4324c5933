"""The report of `make coverage`: what it is about for a part of the tests, and what it prints. Nothing is measured here."""

import importlib.util

import pytest

from tests.repo.tree import ROOT

_spec = importlib.util.spec_from_file_location("measure_coverage", ROOT / "scripts" / "measure_coverage.py")
assert _spec is not None
assert _spec.loader is not None
measure_coverage = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(measure_coverage)


@pytest.mark.parametrize(
    ("tests", "packages"),
    [
        (["tests/log"], ["src/headwater/log/*"]),
        (
            ["tests/log/test_topic.py::test_x", "tests/state"],
            ["src/headwater/log/*", "src/headwater/state/*"],
        ),
        (["tests/sources/statsd"], ["src/headwater/sources/statsd/*"]),
        (["tests"], []),
        (["tests/log", "tests/equation"], []),
        (["tests/test_closing.py"], []),
    ],
)
def test_a_part_of_the_tests_is_about_the_same_part_of_the_package(
    tests: list[str], packages: list[str]
) -> None:
    assert measure_coverage.covered_packages(tests) == packages


def test_the_report_has_totals_and_the_least_covered_modules_first() -> None:
    def file(percent: float) -> dict[str, dict[str, float]]:
        return {"summary": {"percent_covered": percent, "missing_lines": 3, "missing_branches": 1}}

    totals = {"covered_lines": 1500, "num_statements": 2000, "covered_branches": 0, "num_branches": 0}
    lines = measure_coverage.lines_of(
        {"totals": totals, "files": {f"m{percent}.py": file(percent) for percent in range(90, 50, -2)}}
    )
    assert lines[0] == "lines      75.0 %  (1,500 of 2,000)"
    assert lines[1] == "branches  100.0 %  (0 of 0)"
    assert lines[4:6] == [
        "  52.0 %  m52.py: 3 lines and 1 branches not run",
        "  54.0 %  m54.py: 3 lines and 1 branches not run",
    ]
    assert len(lines) == 4 + measure_coverage.LEAST
