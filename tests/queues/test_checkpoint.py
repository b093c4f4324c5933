"""A queue's state as bytes is the same state: random states come back, and go on as the original does."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.queues import queue_checkpoint
from headwater.queues.message_positions import Ranges, from_ranges, to_ranges
from headwater.queues.queue_records import SCHEMA, Op, from_batch, to_batch
from headwater.queues.queue_state import QueueState

NUMBERS = st.lists(st.integers(0, 60), max_size=8, unique=True)
OPS = st.tuples(
    st.sampled_from(["claim", "ack", "nack", "extend", "skip", "bury", "replay"]), NUMBERS, st.booleans()
)


def op_of(kind: str, numbers: list[int], keyed: bool, lease: int) -> Op:
    places = np.array(sorted(numbers), dtype=np.int64)
    if kind == "skip":
        return Op("skip", ranges=tuple((n, n + 2) for n in sorted(numbers)))
    keys = places % 5 if keyed and kind in ("claim", "replay") else None
    return Op(kind, places, "w", lease, count=3, deliveries=2, span_us=5, keys=keys, error="e", body=b"b")  # type: ignore[arg-type]


@given(st.lists(OPS, max_size=30), st.integers(0, 30))
def test_a_state_goes_on_from_its_checkpoint_as_if_nothing_had_been(steps: list, cut: int) -> None:
    whole, resumed = QueueState(), QueueState()
    keyed = bool(steps) and steps[0][2]
    for number, (kind, numbers, _) in enumerate(steps):
        op = op_of(kind, numbers, keyed, max(0, number - 1))
        (written,) = from_batch(to_batch([op], SCHEMA))
        if number == cut:
            resumed = queue_checkpoint.decode(queue_checkpoint.encode(resumed))
        one, two = whole.apply(op, number, number * 2), resumed.apply(written, number, number * 2)
        assert one.lost.tolist() == two.lost.tolist()
        assert (one.granted is None) == (two.granted is None)
        if one.granted is not None and two.granted is not None:
            assert one.granted.places.tolist() == two.granted.places.tolist()
            assert one.granted.deliveries.tolist() == two.granted.deliveries.tolist()
        assert whole.taken == resumed.taken
        assert (whole.dying, whole.dead, whole.errors) == (resumed.dying, resumed.dead, resumed.errors)
        assert whole.waiting.places.tolist() == resumed.waiting.places.tolist()
        assert whole.leased == resumed.leased
        assert whole.totals == resumed.totals
        assert whole.floor(0) == resumed.floor(0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=20))
def test_ranges_are_the_set_of_what_was_put_in(added: list[tuple[int, int]]) -> None:
    ranges, plain = Ranges(), set[int]()
    for first, length in added:
        ranges.add(first, first + length)
        plain |= set(range(first, first + length))
        assert {p for first, end in ranges for p in range(first, end)} == plain
    every = np.arange(60)
    assert ranges.contains(every).tolist() == [n in plain for n in every.tolist()]
    assert all(ranges.first_outside(n) == next(m for m in range(n, 70) if m not in plain) for n in range(50))
    places = np.array(sorted(plain), dtype=np.int64)
    assert from_ranges(*to_ranges(places)).tolist() == places.tolist()
