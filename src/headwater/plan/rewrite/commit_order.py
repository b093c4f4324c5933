"""Order of two records by commit, where their times are equal: by the sequence numbers of their commits in the log."""

from __future__ import annotations

import numpy as np

from headwater.log.protocol import Log
from headwater.operators.zset.exact_sums import Ints

_GAP_MAX = 64
"""Largest gap, in offsets, between requested records that are still read as one range."""


class Commits:
    """The commit order of query records and documents. Removed records count in favour of a match: a removed query as
    committed before the document, a removed document as committed after all queries."""

    def __init__(self, log: Log, queries: str, documents: str) -> None:
        self._log = log
        self._queries = queries
        self._documents = documents
        self._known: dict[int, int] = {}

    def __call__(self, partitions: Ints, offsets: Ints, records: Ints) -> Ints:
        """Return, for each document, how many of the query records were committed before or with it."""
        unknown = np.array([offset for offset in records.tolist() if offset not in self._known], np.int64)
        found = self._read(self._queries, 0, unknown)
        self._known |= dict(zip(unknown.tolist(), found.tolist(), strict=True))
        commits = np.maximum.accumulate([self._known[offset] for offset in records.tolist()])
        counts = np.full(len(offsets), len(records), np.int64)
        for partition in np.unique(partitions).tolist():
            mine = np.flatnonzero(partitions == partition)
            when = self._read(self._documents, partition, offsets[mine])
            counts[mine] = np.where(when < 0, len(records), np.searchsorted(commits, when, "right"))
        return counts

    def _read(self, topic: str, partition: int, offsets: Ints) -> Ints:
        """Return the commit sequence of each record; -1 if the record is gone."""
        found = np.full(len(offsets), -1, np.int64)
        if not len(offsets):
            return found
        order = np.argsort(offsets, kind="stable")
        asked = offsets[order]
        info = self._log.partitions(topic).get(partition)
        for some in np.split(np.arange(len(asked)), np.flatnonzero(np.diff(asked) > _GAP_MAX) + 1):
            first, end = int(asked[some[0]]), int(asked[some[-1]]) + 1
            if info is None or end <= info.first:
                continue
            span = max(first, info.first), min(end, info.end)
            for batch in self._log.read(topic, partition, *span, ["_offset", "_sequence"]):
                there = batch.column("_offset").to_numpy()
                places = np.searchsorted(there, asked[some])
                hit = (places < len(there)) & (there[np.minimum(places, len(there) - 1)] == asked[some])
                found[order[some[hit]]] = batch.column("_sequence").to_numpy()[places[hit]]
        return found
