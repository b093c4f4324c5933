"""Changes netted by key, against a plain model: a dictionary that is told what to delete and what to put."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import StatementError
from headwater.operators.zset.delta import Delta
from headwater.sinks.base.net_changes import net
from headwater.sinks.base.target import SinkCheckpoint, SinkError, TargetShape
from headwater.sinks.base.upsert_key import check_key
from headwater.testing.sinks import MemoryPlace, MemoryTarget
from tests.raising import raises

SCHEMA = pa.schema([("k", pa.float64()), ("g", pa.string()), ("v", pa.int64())])
SHAPE = TargetShape("sink", "view", SCHEMA, ("k", "g"))
KEYS = st.tuples(st.sampled_from([None, math.nan, 0.0, 1.0]), st.sampled_from([None, "", "a"]))
TABLES = st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 2)), max_size=8)

Table = dict[tuple[Any, Any], Any]


def target() -> MemoryTarget:
    made = MemoryTarget(MemoryPlace())
    made.prepare(SHAPE)
    return made


def rows(table: Table) -> list[tuple[Any, Any, Any]]:
    return [(k, g, v) for (k, g), v in table.items()]


def delta(gone: list[Any], come: list[Any]) -> Delta:
    both = gone + come
    columns = list(zip(*both, strict=True)) if both else [[], [], []]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    return Delta(batch, np.array([-1] * len(gone) + [1] * len(come), dtype=np.int64))


def as_text(table: Table) -> set[str]:
    return {repr(row) for row in rows(table)}


@given(TABLES, st.lists(TABLES, min_size=1, max_size=4))
def test_the_net_change_makes_the_last_table_of_the_first(first: Table, later: list[Table]) -> None:
    ticks, before = [], first
    for number, table in enumerate(later):
        ticks.append((number, delta(rows(before), rows(table))))
        before = table
    netted = net(ticks, SHAPE, target())
    stored = {repr(key): repr((*key, value)) for key, value in first.items()}
    deleted = [repr(tuple(row.values())) for row in netted.change.deletes.to_pylist()]
    upserts = netted.change.upserts.to_pylist()
    upserted = [repr((row["k"], row["g"])) for row in upserts]
    assert len(set(deleted + upserted)) == len(deleted) + len(upserted)
    for key in deleted:
        del stored[key]
    for key, row in zip(upserted, upserts, strict=True):
        assert stored.get(key) != repr(tuple(row.values()))  # nothing is written that is there
        stored[key] = repr(tuple(row.values()))
    assert set(stored.values()) == as_text(later[-1])
    assert netted.difference.rows == len(later[-1]) - len(first)
    assert repr(netted.rows.to_pylist()) == repr(upserts)


def test_two_rows_with_one_key_are_an_error_that_names_it() -> None:
    with raises(SinkError, sink="sink", key="(k: 1, g: None)"):
        net([(1, delta([], [(1.0, None, 1), (1.0, None, 2), (2.0, None, 2)]))], SHAPE, target())
    twice = Delta(delta([], [(1.0, "a", 1)]).rows, np.array([2], dtype=np.int64))
    with raises(SinkError, sink="sink", key="(k: 1, g: a)"):
        net([(1, twice)], SHAPE, target())


def test_a_changelog_is_not_netted_over_ticks() -> None:
    shape = TargetShape("sink", "view", SCHEMA, (), "changelog")
    ticks = [(4, delta([], [(1.0, "a", 1)])), (6, delta([(1.0, "a", 1)], [(1.0, "a", 2)]))]
    records = net(ticks, shape, target()).change.records
    assert records.column("_weight").to_pylist() == [1, -1, 1]
    assert records.column("_tick").to_pylist() == [4, 6, 6]


@pytest.mark.parametrize(
    ("declared", "unique", "key"),
    [
        (("country",), [("country",)], ("country",)),
        (("COUNTRY",), [("country",)], ("country",)),
        (("id", "country"), [("country",)], ("id", "country")),
        ((), [("id", "country"), ("name",)], ("name",)),
        (("name",), [()], ("name",)),
    ],
)
def test_a_key_that_is_provably_unique_is_taken(
    declared: tuple[str, ...], unique: list[tuple[str, ...]], key: tuple[str, ...]
) -> None:
    assert check_key(_shape(), declared, unique) == key


@pytest.mark.parametrize(
    ("declared", "unique", "facts", "hint"),
    [
        (("country",), [("id", "country")], {"key": ("country",)}, "key = 'id, country'"),
        (("country", "name"), [], {"key": ("country", "name")}, "ROW_NUMBER()"),
        ((), [], {"key": ()}, "ROW_NUMBER()"),
        ((), [()], {"key": ()}, "key = '...'"),
        (("nothing",), [("id",)], {"column": "nothing"}, "id, country, name"),
        (("country",), [("hidden",)], {"key": ("country",)}, "ROW_NUMBER()"),
    ],
)
def test_any_other_key_is_refused_with_what_would_do(
    declared: tuple[str, ...], unique: list[tuple[str, ...]], facts: dict[str, Any], hint: str
) -> None:
    with raises(StatementError, sink="s", view="v", **facts) as caught:
        check_key(_shape(), declared, unique)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def _shape() -> TargetShape:
    return TargetShape(
        "s", "v", pa.schema([("id", pa.int64()), ("country", pa.string()), ("name", pa.string())])
    )


@pytest.mark.parametrize(
    "text", ["", "x", "{}", "[]", "null", '{"tick": "a"}', '{"tick": 1, "history": "h"}']
)
def test_what_is_no_stand_is_none(text: str) -> None:
    assert SinkCheckpoint.parse(text) is None


def test_a_stand_survives_its_text() -> None:
    for checkpoint in (
        SinkCheckpoint(7, "w/1.2", 2**64 - 1, 3),
        SinkCheckpoint(1, "h", 0, 0, b"\x00\xff", whole=False),
    ):
        assert SinkCheckpoint.parse(checkpoint.text()) == checkpoint
        assert SinkCheckpoint.parse(checkpoint.text()).text() == checkpoint.text()  # type: ignore[union-attr]
