"""The job that checks executors: it reports what differs there, and leaves nothing in the workspace."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.engine.dataflow import cluster_check
from headwater.engine.dataflow.cluster_check import ExecutorFacts, _differences, _facts, check_cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a workspace."""
    with hw.open(tmp_path / "shop"):
        return tmp_path / "shop"


def test_executors_like_the_driver_are_ready(folder: Path, spark: SparkSession) -> None:
    before = sorted(os.listdir(folder))
    report = check_cluster(spark, str(folder))
    assert report.executors
    assert list(report.differences) == []
    assert sorted(os.listdir(folder)) == before


def test_a_folder_that_is_not_mounted_is_reported(tmp_path: Path, spark: SparkSession) -> None:
    report = check_cluster(spark, str(tmp_path / "elsewhere"))
    assert len(report.differences) == len(report.executors) > 0
    assert all("folder" in difference.sentence for difference in report.differences)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another Python": ({"python": "3.9.1"}, "Python 3.9.1"),
    "no Headwater": ({"packages": dict.fromkeys(cluster_check.PACKAGES)}, "headwater not installed"),
    "another workspace": ({"workspace": "0" * 64}, "the folder of that path is another one"),
    "a file that is not seen": ({"written": "elsewhere"}, "does not see"),
    "a clock ahead": ({"at_s": 1_000.0}, "differs by 900.0 s"),
    "little memory": ({"memory_bytes": 512 << 20}, "512 MB of memory"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_named(folder: Path, change: str) -> None:
    here = replace(
        ExecutorFacts(**_facts(str(folder), None)), at_s=50.0, written="seen", memory_bytes=8 << 30
    )
    span = (0.0, 100.0)
    assert not list(_differences(here, here, {"seen"}, span))
    facts, sentence = CHANGES[change]
    found = list(_differences(replace(here, **facts), here, {"seen"}, span))
    assert sentence in found[0].sentence
    assert all(difference.hint for difference in found)
