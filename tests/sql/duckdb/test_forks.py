"""Processes that are forked after a query: they run, query and end as if there had been none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FORKS = """
import os, subprocess, sys, threading
import headwater as hw
from headwater.sql.duckdb.duckdb_engine import QueryBounds, TooLongError, run

ws = hw.open(sys.argv[1])
ws.sql("CREATE TOPIC t (a BIGINT)")
ws.topic("t").append([{"a": n} for n in range(10)])
COUNT = "SELECT count(*) AS n FROM t"
assert ws.query(COUNT).to_pylist() == [{"n": 10}]

def code_of(child) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

# by a program that is started, as Spark's JVM is; by a child that ends at once; and by one that queries and ends in good order
codes = [subprocess.run(["true"], preexec_fn=lambda: None).returncode]
if not (child := os.fork()):
    os._exit(0)
codes.append(code_of(child))
if not (child := os.fork()):
    assert run("SELECT 1 + 1 AS n", {}).column("n").to_pylist() == [2]
    sys.exit(0)
codes.append(code_of(child))

asked, done = threading.Event(), threading.Event()

def ask_and_stay() -> None:
    ws.query(COUNT)
    asked.set()
    done.wait()

def ask_for_long() -> None:
    try:
        run("SELECT sum(a.range * b.range) AS s FROM range(1000000) a, range(1000000) b", {}, QueryBounds.of(None, 1.0))
    except TooLongError:
        pass

threads = [threading.Thread(target=ask_and_stay), threading.Thread(target=ask_for_long)]
for thread in threads:
    thread.start()
asked.wait()
codes.append(subprocess.run(["true"], preexec_fn=lambda: None).returncode)
done.set()
for thread in threads:
    thread.join()
assert ws.query(COUNT).to_pylist() == [{"n": 10}]
print(codes)
"""

VIEW = """
import sys
import headwater as hw

ws = hw.open(sys.argv[1])
ws.sql("CREATE TOPIC t (a BIGINT)")
ws.topic("t").append([{"a": n} for n in range(10)])
ws.query("SELECT count(*) AS n FROM t")
ws.sql("CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t")
ws.run()
print(ws.query("SELECT s FROM v").to_pylist())
"""


def _printed(script: str, workspace: Path) -> str:
    done = subprocess.run([sys.executable, "-c", script, str(workspace)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_processes_forked_after_a_query_end_well_and_may_query(tmp_path: Path) -> None:
    assert _printed(FORKS, tmp_path / "w") == "[0, 0, 0, 0]"


@pytest.mark.slow
@pytest.mark.long
def test_a_query_before_the_first_view_lets_spark_start(tmp_path: Path) -> None:
    assert _printed(VIEW, tmp_path / "w") == "[{'s': 45}]"
