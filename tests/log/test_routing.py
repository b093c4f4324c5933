"""Rows go where their key says, in order, for ever."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.log.routing import SPREAD_ROWS_MIN, needs_ends, partition_of_key, route


def topic(partitions: int = 4, **options: object) -> TopicDefinition:
    schema = pa.schema([pa.field("user", pa.string()), pa.field("n", pa.int64())])
    return define_topic("clicks", schema, options={"partitions": partitions, **options})


def numbered(count: int) -> list[dict[str, object]]:
    return [{"user": f"u{n % 10}", "n": n} for n in range(count)]


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=50), st.integers(1, 9))
def test_rows_are_split_by_key_without_loss_and_in_order(users: list[str | None], partitions: int) -> None:
    by_user = topic(partitions, partition_by="user")
    batch = conform([{"user": user, "n": n} for n, user in enumerate(users)], by_user)
    pieces = route(batch, by_user, {})
    rows = defaultdict(list)
    for p, piece in pieces.items():
        assert piece.num_rows
        for row in piece.to_pylist():
            assert partition_of_key(by_user, [row["user"]]) == p
            rows[p].append(row["n"])
    assert sorted(n for numbers in rows.values() for n in numbers) == list(range(len(users)))
    assert all(numbers == sorted(numbers) for numbers in rows.values())


def test_a_small_append_without_a_key_goes_to_the_emptiest_partition() -> None:
    spread = topic(3)
    assert list(route(conform(numbered(5), spread), spread, {0: 7, 1: 2, 2: 9})) == [1]
    assert list(route(conform(numbered(5), spread), spread, {})) == [0]


def test_a_large_append_without_a_key_is_cut_in_order() -> None:
    spread = topic(3)
    pieces = route(conform(numbered(3 * SPREAD_ROWS_MIN), spread), spread, {0: 99})
    assert [piece.num_rows for _, piece in sorted(pieces.items())] == [SPREAD_ROWS_MIN] * 3
    assert [n for _, piece in sorted(pieces.items()) for n in piece.column("n").to_pylist()] == list(
        range(192)
    )


def test_no_rows_go_nowhere() -> None:
    assert route(conform([], topic()), topic(), {}) == {}


def test_one_partition_takes_the_batch_as_it_is() -> None:
    single = topic(1, partition_by="user")
    batch = conform(numbered(5), single)
    assert route(batch, single, {})[0] is batch


@pytest.mark.parametrize(
    ("definition", "needed"),
    [(topic(1), False), (topic(3), True), (topic(3, partition_by="user"), False)],
)
def test_only_spreading_needs_to_know_the_ends(definition: TopicDefinition, needed: bool) -> None:
    assert needs_ends(definition) is needed


def test_keys_stay_where_they_have_always_been() -> None:
    """Golden: a change here would scatter the keys of every topic there is."""
    by_user = topic(8, partition_by="user")
    assert [partition_of_key(by_user, [f"user-{n}"]) for n in range(12)] == GOLDEN


GOLDEN = [7, 6, 3, 3, 1, 3, 5, 4, 3, 1, 1, 4]
