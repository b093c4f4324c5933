"""Encodes the state of a queue as one Arrow stream: opening a queue costs its open messages, not its history. Pure
functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headwater.queues.message_positions import Places
from headwater.queues.queue_state import Grant, QueueState, Totals

SCHEMA = pa.schema(
    [
        ("what", pa.string()),
        ("place", pa.int64()),
        ("time", pa.int64()),
        ("deliveries", pa.int64()),
        ("key", pa.int64()),
        ("lease", pa.int64()),
        ("worker", pa.string()),
        ("limit", pa.int64()),
        ("error", pa.string()),
        ("body", pa.binary()),
    ]
)
"""A row is a message that is 'leased', 'waiting', 'dying' or 'dead', or a range of 'taken' positions from `place` up to but
not including `time`. For leased messages `time` is when the lease expires, for waiting ones when the message is due again."""
_ABOUT = b"about"


def encode(state: QueueState) -> bytes:
    """Return the state as bytes."""
    rows = [_column_row(row) for row in _rows(state)]
    about = {"position": state.position, "totals": dataclasses.asdict(state.totals)}
    schema = SCHEMA.with_metadata({_ABOUT: orjson.dumps(about)})
    columns = [pa.array([row[n] for row in rows], SCHEMA.field(n).type) for n in range(len(SCHEMA))]
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(out, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return bytes(out.getvalue())


def _rows(state: QueueState) -> Iterator[dict[str, Any]]:
    def noted(place: int) -> dict[str, Any]:
        return {"place": place, "error": state.errors.get(place), "body": state.bodies.get(place)}

    for first, end in state.taken:
        yield {"what": "taken", "place": first, "time": end}
    for grant in state.leases.values():
        for row in np.flatnonzero(grant.open).tolist():
            yield {
                "what": "leased",
                "time": int(grant.until[row]),
                "deliveries": int(grant.deliveries[row]),
                "key": None if grant.keys is None else int(grant.keys[row]),
                "lease": grant.lease,
                "worker": grant.worker,
                "limit": grant.limit,
                **noted(int(grant.places[row])),
            }
    waiting = state.waiting
    columns = (waiting.places, waiting.due, waiting.deliveries, waiting.keys)
    for place, due, deliveries, key in zip(*(column.tolist() for column in columns), strict=True):
        yield {"what": "waiting", "time": due, "deliveries": deliveries, "key": key, **noted(place)}
    for place, deliveries in state.dying.items():
        yield {"what": "dying", "deliveries": deliveries, **noted(place)}
    for place in state.dead:
        yield {"what": "dead", **noted(place)}


def _column_row(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in SCHEMA.names)


def decode(data: bytes) -> QueueState:
    """Return the state that `encode` encoded."""
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    about = orjson.loads(table.schema.metadata[_ABOUT])
    state = QueueState()
    state.position, state.totals = about["position"], Totals(**about["totals"])
    by_lease: dict[int, list[dict[str, Any]]] = {}
    waiting: list[dict[str, Any]] = []
    for row in table.to_pylist():
        place = row["place"]
        match row["what"]:
            case "taken":
                state.taken.add(place, row["time"])
                continue
            case "leased":
                by_lease.setdefault(row["lease"], []).append(row)
            case "waiting":
                waiting.append(row)
            case "dying":
                state.dying[place] = row["deliveries"]
            case "dead":
                state.dead.add(place)
        if row["error"] is not None:
            state.errors[place] = row["error"]
        if row["body"] is not None:
            state.bodies[place] = row["body"]
    if waiting:
        state.waiting.add(*(_numbers(waiting, name) for name in ("place", "time", "deliveries", "key")))
    for lease, rows in sorted(by_lease.items()):
        places, until, deliveries = (_numbers(rows, name) for name in ("place", "time", "deliveries"))
        keys = None if rows[0]["key"] is None else _numbers(rows, "key")
        open_ = np.ones(len(rows), dtype=bool)
        state.hold(Grant(lease, rows[0]["worker"], rows[0]["limit"], places, until, deliveries, keys, open_))
    return state


def _numbers(rows: list[dict[str, Any]], name: str) -> Places:
    return np.array([row[name] for row in rows], dtype=np.int64)
