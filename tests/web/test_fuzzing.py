"""Requests from a grammar of every route: none of them ends the server, and none is answered as if the server were at fault."""

import os
import secrets
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.web.app import ROUTES
from headwater.web.console import console_api
from tests.web.fuzz_routes import GRAMMARS, SECRET, request_of
from tests.web.fuzzing import fuzzed, prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = os.environ.get("HEADWATER_LONG") == "1"
ROUNDS, SECONDS = (20, 180) if LONG else (1, 30)
SEED = secrets.token_hex(6) if LONG else "headwater"


@pytest.fixture(scope="module")
def place(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fuzzing") / "ws"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUZZ_SECRET", SECRET.decode())
        prepare(found, spark)
    return found


def test_every_route_has_a_grammar() -> None:
    assert set(GRAMMARS) == {(method, path) for method, path, _ in (*ROUTES, *console_api.ROUTES)}


def test_every_route_is_asked() -> None:
    asked = {request_of(f"{SEED}0-0-{number}").route for number in range(6_000)}
    assert asked == {" ".join(route) for route in GRAMMARS}


def test_a_seed_is_always_the_same_request() -> None:
    for number in range(200):
        one, other = request_of(f"same-{number}"), request_of(f"same-{number}")
        assert (one.method, one.target, one.body) == (other.method, other.target, other.body)


@pytest.mark.slow
@pytest.mark.timeout(ROUNDS * SECONDS + 600)
def test_no_request_ends_the_server_or_is_answered_with_its_own_fault(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUZZ_SECRET", SECRET.decode())
    statuses: Counter[tuple[str, int]] = Counter()
    for number in range(
        ROUNDS
    ):  # each with a workspace as it was: what is posted makes answers larger and slower
        fresh = tmp_path / str(number)
        shutil.copytree(place, fresh)
        with fuzzed(fresh, f"{SEED}{number}") as fuzzer:
            fuzzer.run(SECONDS)
            fuzzer.server.process.terminate()
            assert fuzzer.server.process.wait(60) == 0
        statuses += fuzzer.statuses
        shutil.rmtree(fresh)
    taken = {route for route, status in statuses if status == 200}
    assert len(taken) > len(GRAMMARS) // 2, "most routes are met by requests that they take"
