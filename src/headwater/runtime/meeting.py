"""All matches from the records alone, with nothing of a tick: what `verify` compares with."""

from __future__ import annotations

import pyarrow as pa

from headwater.operators.standing.history import RECORDS
from headwater.operators.standing.meeting import MeetSpec, all_matches
from headwater.queries import graph as g


def recomputed(root: g.Node, queries: pa.RecordBatch, documents: pa.RecordBatch) -> pa.Table:
    """What documents meet, of all records of queries. Both have the columns of their topics, and where each record stands."""
    assert isinstance(root, g.Meet)
    spec: MeetSpec = root.handle
    rows = documents.select(spec.documents.names)
    return pa.Table.from_batches([all_matches(spec, queries.select(RECORDS.names), rows)])
