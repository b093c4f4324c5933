"""A Spark whose JVM was killed or ran out of memory: each call says so, no view is stopped, and a workspace that is opened again works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
from pathlib import Path
import headwater as hw
from headwater.spark.spark_session import session

ASKED = "SELECT id, sentences(s) AS words FROM t"
folder = Path(sys.argv[1])
ws = hw.open(folder / "ws", durability="os")
ws.sql(f"CREATE TOPIC t (id BIGINT, s STRING); CREATE MATERIALIZED VIEW v AS {ASKED}")
ws.topic("t").append([{"id": 1, "s": "a"}])
ws.run()
jvm = session()._sc._gateway.proc
os.kill(jvm.pid, signal.SIGKILL)
jvm.wait()
ws.topic("t").append([{"id": 2, "s": "b"}])
ws.sql("ALTER TOPIC t ADD COLUMN more INT")  # so that the view is planned again
calls = {
    "query": lambda: ws.query(ASKED),
    "query again": lambda: ws.query(ASKED),
    "explain": lambda: ws.sql(f"EXPLAIN {ASKED}"),
    "create": lambda: ws.sql(f"CREATE MATERIALIZED VIEW w AS {ASKED}"),
    "create topic": lambda: ws.sql(f"CREATE TOPIC c AS {ASKED}"),
    "subscribe": lambda: ws.subscribe(ASKED),
    "verify": ws.verify,
    "run": ws.run,
    "start": lambda: ws.start().stop(),
}
for name, call in calls.items():
    try:
        call()
    except hw.SparkJobError:
        continue
    except Exception as error:
        print(f"{name}: {type(error).__name__} {error}")
ws.close()
with hw.open(folder / "ws", durability="os") as again:
    report = again.run()
    print(report.stopped, again.query(ASKED).num_rows, again.query("SELECT * FROM v").num_rows, again.verify().ok)
"""


@pytest.mark.slow
def test_whoever_needs_a_spark_that_has_ended_gets_an_error_and_goes_on_when_it_is_opened_again(
    tmp_path: Path,
) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{} 2 2 True"], done.stdout
