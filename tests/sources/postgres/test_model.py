"""Whatever happens to tables, server and process: a topic equals its table, or its source stands stopped for a reason that is right."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer
from tests.sources.postgres.model.ddl import MakeAnother
from tests.sources.postgres.model.faults import DropSlot, RestartServer, SetServerBack
from tests.sources.postgres.model.generate import FOLLOWED, GAPS, generate
from tests.sources.postgres.model.player import ScriptError, play
from tests.sources.postgres.model.settings import impatient, make_server
from tests.sources.postgres.model.shorten import shortened
from tests.sources.postgres.model.steps import Savepoint, Step, Transaction

SEEDS = (
    *range(21), 33, 35, 68, 83, 191, 407, 791, 413039986, 452561310, 517797052, 838206139, 1071661403,
)  # fmt: skip
"""Some of the first, and others that have the kinds of steps that those lack."""
LONG_S = float(os.environ.get("HEADWATER_MODEL_S", "3600"))
"""How long scripts of new seeds are played by `make test-long`."""
SHORTEN_S = 120.0
EQUAL_MIN = 0.8
"""The share of scripts that nothing stops: a source that stops whenever it may is of no use."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = make_server()
    with impatient():
        yield server
    server.remove()


def play_all(
    server: PostgresServer, folder: Path, seeds: Iterable[int]
) -> tuple[list[ScriptError], int, int]:
    """Play the scripts of seeds: those that failed, how many were played, and in how many nothing stopped."""
    failed, played, equal = [], 0, 0
    for seed in seeds:
        played += 1
        try:
            equal += not play(server, generate(seed), folder)
        except ScriptError as error:
            failed.append(error)
    return failed, played, equal


def test_scripts_that_are_always_played_have_every_kind_of_step() -> None:
    scripts = [generate(seed) for seed in SEEDS]
    assert set().union(*(script.kinds for script in scripts)) == FOLLOWED.keys() | GAPS.keys()
    steps = [step for script in scripts for step in script.steps]
    for found, wanted in (
        ({step.swaps for step in steps if isinstance(step, MakeAnother)}, {False, True}),
        ({step.is_made_again for step in steps if isinstance(step, DropSlot)}, {False, True}),
        ({step.promotes for step in steps if isinstance(step, SetServerBack)}, {False, True}),
        ({step.crashes for step in steps if isinstance(step, RestartServer)}, {False, True}),
        ({step.end for step in steps if isinstance(step, Transaction)}, {"commit", "rollback", "prepare"}),
        ({item.is_undone for item in _items(steps) if isinstance(item, Savepoint)}, {False, True}),
        ({script.options["on_gap"] for script in scripts if script.kinds & GAPS.keys()}, {"stop", "snapshot"}),
    ):  # fmt: skip
        assert found == wanted


def test_a_name_is_never_that_of_columns_of_two_types_though_the_server_is_set_back() -> None:
    """The topic has the columns of before: of another type they could not be followed, and the stop would be right."""
    added = re.compile(r"ALTER TABLE (\w+) ADD (\w+) (\w+)")
    for seed in range(100):
        steps = generate(seed, ["copy server", "set server back"]).steps
        types: dict[tuple[str, str], str] = {}
        for table, column, kind in added.findall("; ".join(map(str, steps))):
            assert types.setdefault((table, column), kind) == kind, f"column {column}, seed {seed}"


def _items(steps: Iterable[Step]) -> list[str | Savepoint]:
    return [item for step in steps if isinstance(step, Transaction) for item in step.items]


def test_topics_equal_their_tables_or_stand_stopped(server: PostgresServer, tmp_path: Path) -> None:
    failed, played, equal = play_all(server, tmp_path, SEEDS)
    assert not failed, "\n\n".join(map(str, failed))
    assert equal >= EQUAL_MIN * played


@pytest.mark.long
@pytest.mark.timeout(2 * LONG_S + 600)
def test_topics_equal_their_tables_or_stand_stopped_for_an_hour(
    server: PostgresServer, tmp_path: Path
) -> None:
    deadline = time.monotonic() + LONG_S
    begin = random.SystemRandom().randrange(1_000, 1 << 30)

    def seeds() -> Iterator[int]:
        seed = begin
        while time.monotonic() < deadline:
            yield seed
            seed += 1

    failed, played, equal = play_all(server, tmp_path, seeds())
    told = [str(shortened(server, error, tmp_path, SHORTEN_S)) for error in failed[:5]]
    assert not failed, f"{len(failed)} of {played} scripts failed:\n\n" + "\n\n".join(told)
    assert equal >= EQUAL_MIN * played
