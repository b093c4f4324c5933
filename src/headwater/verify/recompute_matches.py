"""Computes all percolator matches from the records alone, without state of a tick: the reference that `verify` compares
with."""

from __future__ import annotations

import pyarrow as pa

from headwater.operators import graph as g
from headwater.operators.percolator.percolate import PercolatorSpec, all_matches
from headwater.operators.percolator.query_history import RECORDS


def recomputed(root: g.Node, queries: pa.RecordBatch, documents: pa.RecordBatch) -> pa.Table:
    """Return the matches of documents with all records of stored queries. Both batches have the columns of their topics and
    the log position of each record."""
    assert isinstance(root, g.Percolate)
    spec: PercolatorSpec = root.handle
    rows = documents.select(spec.documents.names)
    return pa.Table.from_batches([all_matches(spec, queries.select(RECORDS.names), rows)])
