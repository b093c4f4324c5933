"""All matches from the records alone, with nothing of a tick: what `verify` compares with."""

from __future__ import annotations

import pyarrow as pa

from headwater.operators import graph as g
from headwater.operators.percolator.percolate import PercolatorSpec, all_matches
from headwater.operators.percolator.query_history import RECORDS


def recomputed(root: g.Node, queries: pa.RecordBatch, documents: pa.RecordBatch) -> pa.Table:
    """What documents meet, of all records of queries. Both have the columns of their topics, and where each record stands."""
    assert isinstance(root, g.Meet)
    spec: PercolatorSpec = root.handle
    rows = documents.select(spec.documents.names)
    return pa.Table.from_batches([all_matches(spec, queries.select(RECORDS.names), rows)])
