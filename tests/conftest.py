"""What all tests share: how hard hypothesis tries, and which tests the inner loop leaves out."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import headwater as hw
from headwater.core.clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.equation.oracle import Oracle

LONG = os.environ.get("HEADWATER_LONG") == "1"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 8 << 30
OPEN_FILES = Path("/proc/self/fd")
OPEN_FILES_MAX = 512

# Thousands of workspaces and servers that live for a second would keep a disk busy with syncs. What the loss of power does is
# tested with a disk of our own (`headwater.testing.faults`), which no file system needs to be under.
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Programs that tests start live for seconds: their JVMs need neither the best code nor threads to collect garbage with.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# `make test` gives the same verdict each time; `make test-long` looks for what nobody has seen yet.
settings.register_profile(
    "test", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("test"), derandomize=False, max_examples=2_000)
settings.load_profile("long" if LONG else "test")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Crash suites, `test_crash*.py` or a folder called so, are slow by nature: no need to say it in each."""
    for item in items:
        names = Path(item.path).relative_to(Path(__file__).parent).parts
        if any(name.removeprefix("test_").startswith("crash") for name in names):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup() -> None:
    """Have what crashed in tests before closed: Spark's callbacks to Python wait by select(), for no file beyond the 1,024th."""
    if OPEN_FILES.is_dir() and len(os.listdir(OPEN_FILES)) > OPEN_FILES_MAX:
        gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The worker's Spark session, with two cores, in which a task may fail three times."""
    from tests.shared_spark import make_session

    session = make_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def oracle(spark: "SparkSession") -> "Oracle":
    """The batch oracle, in a session of its own."""
    from tests.equation.oracle import Oracle

    return Oracle(spark)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when a test moves it."""
    return ManualClock()


@pytest.fixture(params=["memory", "embedded"])
def ws(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[hw.Workspace]:
    """An empty workspace, once in memory and once in a folder."""
    place = "memory:" if request.param == "memory" else tmp_path / "workspace"
    with hw.open(place, clock=clock) as workspace:
        yield workspace
