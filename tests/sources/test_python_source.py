"""A user's own class as a source: the contract, and what becomes of mistakes in it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

import headwater as hw
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.clock import SystemClock
from headwater.core.errors import SourceError, UsageError
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Log
from headwater.sources import python_source
from headwater.sources.python_source import PythonSource
from headwater.sources.registry import DeclaredSource
from headwater.sources.source_runner import Capture, producer_of
from headwater.testing.source_contract import Row, SourceContract, declared
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = "tests.sources.test_python_source"


class Orders(python_source.Source):
    """Reads transactions, a line each, from a file; its position is the number of lines."""

    topics: ClassVar[dict[str, Any]] = {
        "orders": "id BIGINT, at BIGINT, PRIMARY KEY (id)",
        "items": pa.schema([("id", pa.int64()), ("item", pa.string())]),
    }

    def __init__(self, file: str) -> None:
        self.file = file

    def read(self, position: int | None) -> Iterator[tuple[dict[str, list[Row]], int]]:
        done = position or 0
        for number, line in enumerate(Path(self.file).read_text().splitlines()[done:], start=done):
            yield json.loads(line), number + 1


class Waiting(Orders):
    """The same, but it never returns."""

    def read(self, position: int | None) -> Iterator[tuple[dict[str, list[Row]], int] | None]:
        done = position or 0
        while True:
            for rows, after in super().read(done):
                yield rows, after
                done = after
            yield None


class TestPython(SourceContract):
    kind = "Orders"

    def setup_method(self) -> None:
        super().setup_method()
        self.file = self.folder / "orders.jsonl"
        self.file.touch()
        self.done: list[dict[str, list[Row]]] = []

    def make_source(self, log: Log) -> DeclaredSource:
        options = json.dumps({"file": str(self.file)})
        return declared(
            log, self.folder, "python", **{"class": f"{HERE}:{self.kind}"}, options=options, every="0 s"
        )

    def grow(self, chance: random.Random) -> None:
        number = len(self.done)
        rows: dict[str, list[Row]] = {
            "orders": [{"id": number, "at": chance.randrange(1_000)}],
            "items": [{"id": number, "item": f"{n}"} for n in range(chance.randrange(4))],
        }
        self.done.append(rows)
        with self.file.open("a") as file:
            file.write(json.dumps(rows) + "\n")

    def expected(self) -> dict[str, list[list[Row]]]:
        return {topic: [[row for rows in self.done for row in rows[topic]]] for topic in ("orders", "items")}

    def transactions(self) -> list[list[tuple[str, Row]]]:
        return [[(topic, row) for topic in rows for row in rows[topic]] for rows in self.done]


class TestPythonThatWaits(TestPython):
    kind = "Waiting"


class Given(python_source.Source):
    """Hands over what a test says, and raises what it says."""

    topics: ClassVar[dict[str, Any]] = {"rows": "n BIGINT"}
    script: ClassVar[list[Any]] = []
    made: ClassVar[int] = 0
    closed: ClassVar[int] = 0
    asked: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        type(self).made += 1

    def read(self, position: Any) -> Iterator[Any]:
        self.asked.append(position)
        while self.script:
            item = self.script.pop(0)
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def given() -> type[Given]:
    Given.script, Given.asked, Given.made, Given.closed = [], [], 0, 0
    return Given


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


def start(log: MemoryLog, path: str = f"{HERE}:Given", **options: Any) -> tuple[PythonSource, Capture]:
    source = PythonSource(
        "own",
        {"class": path, **options},
        log.topics().get,
        lambda: log.producer(producer_of("own")),
        sleep=lambda seconds: None,
    )
    for topic in source.check():
        define(log, pytest.fail, topic)
    source._definition = log.topics().get
    return source, Capture(log, "own", source, pytest.fail, SystemClock())


def numbers(log: MemoryLog) -> list[int]:
    end = log.partitions("rows")[0].end
    return [n for batch in log.read("rows", 0, 0, end, ["n"]) for n in batch.column("n").to_pylist()]


def test_rows_of_every_kind_are_taken_with_their_position(log: MemoryLog, given: type[Given]) -> None:
    given.script = [
        ({"rows": [{"n": 1}]}, {"page": 1}),
        ({"rows": pa.table({"n": [2, 3]})}, {"page": 2}),
        ({}, {"page": 3}),
        None,
    ]
    source, capture = start(log)
    capture.run(until=source.end())
    assert numbers(log) == [1, 2, 3]
    known = log.producer(producer_of("own"))
    assert known is not None
    assert known.note == {"position": {"page": 3}}
    assert log.topic("rows").captured_by == "own"
    (batch,) = log.read("rows", 0, 0, 1, ["_source_position", "_transaction", "_source_time"])
    assert None not in batch.to_pylist()[0].values()


def test_an_error_of_its_own_is_waited_out_with_a_new_object_from_the_last_position(
    log: MemoryLog, given: type[Given]
) -> None:
    given.script = [
        ({"rows": [{"n": 1}]}, 7),
        ConnectionError("gone"),
        ConnectionError("still"),
        ({"rows": [{"n": 2}]}, 8),
    ]
    source, capture = start(log)
    capture.run(until=source.end())
    assert numbers(log) == [1, 2]
    assert given.asked == [None, 7, 7]
    assert given.made == given.closed == 3


def test_an_error_that_stays_is_told_with_the_class_and_its_traceback(
    log: MemoryLog, given: type[Given]
) -> None:
    given.script = [({"rows": [{"n": 1}]}, 1), *[ValueError(f"no page {n}") for n in range(20)]]
    source, capture = start(log)
    with raises(SourceError, source="own", class_path=f"{HERE}:Given") as caught:
        capture.run(until=source.end())
    assert "raise item" in str(caught.value.detail)
    assert isinstance(caught.value.__cause__, ValueError)
    assert numbers(log) == [1]


def test_where_nobody_waits_it_is_tried_for_ever_and_the_state_tells(
    log: MemoryLog, given: type[Given]
) -> None:
    given.script = [*[ValueError("not now") for _ in range(20)], ({"rows": [{"n": 1}]}, 1)]
    source, _ = start(log)
    states = set()
    for event in source.read(None, -1):
        states.add(source.state)
        if type(event).__name__ == "Commit":
            break
    assert any(
        state.startswith("trying again: ") and state.endswith("ValueError: not now") for state in states
    )


@pytest.mark.parametrize(
    ("item", "facts"),
    [
        ([{"n": 1}], {"reason": "not-a-pair"}),
        (({"rows": [{"n": "x"}]}, 1), {"topic": "rows", "column": "n", "value": "x", "expected": "BIGINT"}),
        (({"others": [{"n": 1}]}, 1), {"topic": "others"}),
        (({"rows": [{"n": 1}]}, object()), {"reason": "position-not-json"}),
        (({"rows": [{"n": 1}]}, None), {"reason": "no-position"}),
    ],
)
def test_items_that_are_no_rows_and_position_are_reported(
    log: MemoryLog, given: type[Given], item: Any, facts: dict[str, Any]
) -> None:
    given.script = [item] * 10
    source, capture = start(log)
    with raises(SourceError, source="own", **facts) as caught:
        capture.run(until=source.end())
    assert f"{HERE}:Given" in caught.value.message
    assert numbers(log) == []


class NoTopics:
    def read(self, position: Any) -> Iterator[Any]:
        yield from ()


class NoRead:
    topics: ClassVar[dict[str, str]] = {"rows": "n BIGINT"}


@pytest.mark.parametrize(
    ("path", "options", "facts"),
    [
        ("no.such.module:Class", {}, {"option": "class", "reason": "import"}),
        (f"{HERE}:Nobody", {}, {"option": "class", "reason": "import"}),
        ("justaname", {}, {"option": "class", "reason": "path"}),
        (f"{HERE}:HERE", {}, {"option": "class", "reason": "not-a-class"}),
        (f"{HERE}:NoTopics", {}, {"source": "own", "reason": "no-topics"}),
        (f"{HERE}:NoRead", {}, {"source": "own", "reason": "no-read"}),
        (f"{HERE}:Given", {"options": "[1]"}, {"option": "options"}),
        (f"{HERE}:Given", {"options": "{"}, {"option": "options"}),
        (f"{HERE}:Given", {"every": 1}, {"argument": "every", "value": 1}),
    ],
)
def test_declarations_that_cannot_be_are_refused(
    log: MemoryLog, path: str, options: dict[str, Any], facts: dict[str, Any]
) -> None:
    with raises(UsageError, **facts):
        start(log, path, **options)


def test_a_topic_of_the_users_own_stays_as_it_is(log: MemoryLog, given: type[Given]) -> None:
    from headwater.catalog.definitions import define_topic

    log.create_topic(define_topic("rows", pa.schema([("n", pa.int64()), ("more", pa.string())])))
    given.script = [({"rows": [{"n": 1, "more": "x"}]}, 1)]
    source, capture = start(log)
    capture.run(until=source.end())
    assert numbers(log) == [1]
    assert log.topic("rows").captured_by is None


def test_a_users_class_is_captured_into_views(tmp_path: Path, spark: SparkSession) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"orders": [{"id": 1, "at": 1}], "items": [{"id": 1, "item": "a"}]}\n')
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            f"CREATE SOURCE shop FROM PYTHON WITH (class = '{HERE}:Orders', every = '0.05 s', "
            f"options = '{json.dumps({'file': str(file)})}')"
        )
        ws.sql(
            "CREATE MATERIALIZED VIEW joined AS SELECT o.id, i.item FROM orders o JOIN items i ON o.id = i.id"
        )
        ws.run()
        assert ws.query("SELECT * FROM joined").to_pylist() == [{"id": 1, "item": "a"}]
        with ws.start():
            with file.open("a") as more:
                more.write('{"orders": [{"id": 2, "at": 1}], "items": [{"id": 2, "item": "b"}]}\n')
            ws.run()
            assert ws.query("SELECT count(*) AS n FROM joined").to_pylist() == [{"n": 2}]
        assert ws.verify().ok
