"""Many posts in one append: the receipt that each is given is of its own rows, wherever the log puts them."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.catalog.conform import conform
from headwater.log.protocol import Append
from headwater.web.idempotency_keys import _read_share, _write_share
from headwater.web.shared_receipts import own_receipt, shares_after, shares_of

TOPICS = ["", "WITH (partitions = 3)", "WITH (partitions = 5, partition_by = 'user')"]


@pytest.mark.parametrize("options", TOPICS)
@given(counts=st.lists(st.integers(0, 120), min_size=1, max_size=8), before=st.integers(0, 7))
def test_each_post_gets_its_own_rows(options: str, counts: list[int], before: int) -> None:
    with hw.open("memory:") as ws:
        ws.sql(f"CREATE TOPIC t (user BIGINT, post BIGINT) {options}")
        ws.topic("t").append([{"user": i, "post": -1} for i in range(before)])
        topic = ws.log.topic("t")
        sent = [{"user": p * 1_000 + i, "post": p} for p, count in enumerate(counts) for i in range(count)]
        rows = conform(sent, topic)
        shares = shares_of(rows, counts, topic)
        receipt = ws.log.append(Append({"t": [rows]}))
        assert (shares is None) == (options == TOPICS[1])
        found = {
            (p, offset): post
            for batch in ws.topic("t").read()
            for p, offset, post in zip(
                *(batch.column(name).to_pylist() for name in ("_partition", "_offset", "post")), strict=True
            )
            if post >= 0
        }
        claimed = {}
        for post, share in enumerate(shares if shares is not None else shares_after(counts, receipt, "t")):
            own = own_receipt(receipt, "t", share)
            assert own.rows == counts[post]
            assert _read_share(_write_share(share)) == share
            for p, (first, end) in own.positions.get("t", {}).items():
                claimed |= {(p, offset): post for offset in range(first, end)}
        assert claimed == found


def test_no_rows_are_nobodys() -> None:
    with hw.open("memory:") as ws:
        ws.sql("CREATE TOPIC t (user BIGINT) WITH (partitions = 2, partition_by = 'user')")
        topic = ws.log.topic("t")
        assert shares_of(conform([], topic), [0, 0], topic) == [{}, {}]
        assert isinstance(conform([], topic), pa.RecordBatch)
