"""Stored queries with all their versions: a document matches the versions valid at its own position in the log.

Queries are records of a keyed topic with one partition, so their offsets are their order. A record replaces the query
with its id, or removes it. A document has *reached* an offset if all records before it were committed before the
document or together with it. A version of a query is valid for the documents that have reached its record and not the
next one of its id. With `backfill` it is also matched against earlier documents, up to a maximum age at the time it was
added. If several versions match a document, the first one is reported.

All results are a function of the records and the documents alone, independent of the order in which the two are processed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.core.errors import HeadwaterError
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.query_index import HoldsFunction, QueryIndex
from headwater.operators.percolator.query_nodes import HIGHEST, ParsedQuery
from headwater.operators.zset.exact_sums import Ints

RECORDS = pa.schema(
    [
        ("id", pa.string()),
        ("query", pa.string()),
        ("kind", pa.string()),
        ("owner", pa.string()),
        ("backfill", pa.string()),
        ("allow_scans", pa.bool_()),
        ("_offset", pa.int64()),
        ("_appended_at", pa.timestamp("us", tz="UTC")),
        ("_op", pa.string()),
    ]
)
"""Schema of the records of stored queries, with their log metadata."""
DELETE = "delete"
NEVER = HIGHEST


@dataclass(frozen=True)
class Stored:
    """The content of a record: a query to store."""

    id: str
    query: ParsedQuery
    owner: str | None = None
    backfill_us: Microseconds | None = None


Compile = Callable[[dict[str, Any]], Stored]
"""Parses a record that is not a tombstone; raises HeadwaterError if it is invalid."""
_READ = [name for name in RECORDS.names if name not in ("_offset", "_appended_at")]


@dataclass(eq=False, slots=True)
class Version:
    """A query from its record on, until the next record of its id. The parsed query is only in the index: there may be
    a million versions."""

    id: str
    owner: str | None
    offset: int
    asked: tuple[str, str | None, bool | None]
    """Text, kind and whether the query may scan, to parse it again when needed."""
    until: int = NEVER
    since_us: Microseconds = NEVER
    """Time of the oldest earlier documents that the version is matched against."""


@dataclass(frozen=True, eq=False)
class QueryMatches:
    """Pairs of a version and a matching document; a query occurs at most once with a document."""

    versions: list[Version]
    documents: Ints
    scores: pa.ChunkedArray
    highlights: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.versions)

    def taken(self, some: Sequence[int]) -> QueryMatches:
        """Return the pairs at these indices."""
        places = np.asarray(some, np.int64)
        scores, highlights = (column.take(pa.array(places)) for column in (self.scores, self.highlights))
        return QueryMatches([self.versions[i] for i in some], self.documents[places], scores, highlights)


class QueryHistory:
    """All versions of all queries of the records taken in."""

    def __init__(
        self, fields: Fields, compile: Compile, holds: HoldsFunction | None = None, *, backfill: bool = True
    ) -> None:
        """`backfill`: whether versions that request it are matched against earlier documents."""
        self._backfill = backfill
        self._fields = fields
        self._compile = compile
        self._holds = holds
        self._index = QueryIndex(fields, holds)
        self._versions: dict[str, list[Version]] = {}
        self._asking_back = _Backfills(fields, holds)
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._arrays: tuple[Ints, Ints] | None = None

    def take(self, records: pa.RecordBatch) -> None:
        """Apply records, in offset order; records up to the last one applied are skipped."""
        last = self._offsets[-1] if self._offsets else -1
        times = records.column("_appended_at").cast(pa.int64()).to_pylist()
        offsets = records.column("_offset").to_pylist()
        start = bisect_right(offsets, last)
        if start == len(offsets):
            return
        rows = records.slice(start).select(_READ).to_pylist()
        new = zip(rows, offsets[start:], times[start:], strict=True)
        for record, offset, time in new:
            self._put(record, offset, time)
        self._offsets += offsets[start:]
        self._times += times[start:]
        self._arrays = None

    def _put(self, record: dict[str, Any], offset: int, time: Microseconds) -> None:
        if record["_op"] == DELETE:
            self._end(record["id"], offset)
            return
        try:
            stored = self._compile(record)
        except HeadwaterError:  # reported elsewhere; the previous version stays valid
            return
        self._end(stored.id, offset)
        asked = (record["query"], record["kind"], record["allow_scans"])
        version = Version(stored.id, stored.owner, offset, asked)
        if stored.backfill_us is not None and self._backfill:
            version.since_us = time - stored.backfill_us
            self._asking_back.put(version, stored.query)
        self._index.put(stored.id, stored.query, offset + 1)
        self._versions.setdefault(stored.id, []).append(version)

    def _end(self, query: str, offset: int) -> None:
        versions = self._versions.get(query)
        if versions and versions[-1].until == NEVER:
            versions[-1].until = offset
            self._index.remove(query, offset + 1)

    def counted(self, upto: int) -> int:
        """Return the number of records before an offset."""
        return int(np.searchsorted(self._known[0], upto))

    @property
    def _known(self) -> tuple[Ints, Ints]:
        if self._arrays is None:
            self._arrays = np.array(self._offsets, np.int64), np.array(self._times, np.int64)
        return self._arrays

    def reached(self, times: Ints, earlier: Callable[[Ints, Ints], Ints]) -> Ints:
        """Return the offset that each document has reached, given the commit times of documents.

        For documents committed in the same microsecond as records, `earlier(documents, offsets)` returns how many of the
        records at these ascending offsets were committed before or together with each document.
        """
        offsets, known = self._known
        if not len(known):
            return np.zeros(len(times), np.int64)
        counts = np.searchsorted(known, times, "right")
        same = np.flatnonzero((counts > 0) & (known[counts - 1] == times))
        for time in np.unique(times[same]):
            mine = same[times[same] == time]
            first, end = np.searchsorted(known, [time, time + 1])
            counts[mine] = first + earlier(mine, offsets[first:end])
        ends: Ints = np.concatenate([np.zeros(1, np.int64), offsets + 1])
        return ends[counts]

    def matches(self, documents: pa.Table, reached: Ints, times: Ints, upto: int) -> QueryMatches:
        """Return all matches of documents by the records before the offset `upto`; `times` are the documents' times."""
        valid = self._valid(self._index, documents, np.minimum(reached, upto))
        return _first_of_each(valid, self._asking_back.matches(documents, reached, times, upto))

    def asked_back(self, offsets: Sequence[int]) -> Microseconds:
        """Return the earliest backfill time of the versions at these offsets; NEVER if none of them backfills."""
        return min((self._asking_back.since(offset) for offset in offsets), default=NEVER)

    def backfilled(
        self, new: Sequence[int], documents: pa.Table, reached: Ints, times: Ints, upto: int
    ) -> QueryMatches:
        """Return the additional matches of documents by the versions at these offsets, which were added after them."""
        ids = {its for offset in new if (its := self._asking_back.id_at(offset)) is not None}
        index, asking_back = QueryIndex(self._fields, self._holds), _Backfills(self._fields, self._holds)
        for version in (version for its in ids for version in self._versions[its]):
            query = self._understood(version)
            index.put(version.id, query, version.offset + 1)
            if version.until != NEVER:
                index.remove(version.id, version.until + 1)
            if version.since_us != NEVER:
                asking_back.put(version, query)
        back = asking_back.matches(documents, reached, times, upto)
        if not len(back):
            return back
        some = np.unique(back.documents)
        valid = self._valid(index, documents.take(pa.array(some)), np.minimum(reached, upto)[some])
        valid = QueryMatches(valid.versions, some[valid.documents], valid.scores, valid.highlights)
        found, fresh = _first_of_each(valid, back), set(new)
        return found.taken([i for i, version in enumerate(found.versions) if version.offset in fresh])

    def _understood(self, version: Version) -> ParsedQuery:
        text, kind, allow_scans = version.asked
        record = {"id": version.id, "query": text, "kind": kind, "allow_scans": allow_scans}
        return self._compile(record | {"owner": None, "backfill": None}).query

    def _valid(self, index: QueryIndex, documents: pa.Table, at: Ints) -> QueryMatches:
        found = index.match(documents, at)
        rows: Ints = found.column("row").to_numpy()
        pairs = zip(found.column("query").to_pylist(), at[rows].tolist(), strict=True)
        versions = [self._version(query, place) for query, place in pairs]
        return QueryMatches(versions, rows, found.column("score"), found.column("highlights"))

    def _version(self, query: str, reached: int) -> Version:
        versions = self._versions[query]
        if len(versions) == 1:
            return versions[0]
        return versions[bisect_right(versions, reached - 1, key=lambda version: version.offset) - 1]


class _Backfills:
    """The versions that are matched against earlier documents."""

    def __init__(self, fields: Fields, holds: HoldsFunction | None) -> None:
        self._index = QueryIndex(fields, holds)
        self._versions: dict[str, Version] = {}
        self._last = -1

    def put(self, version: Version, query: ParsedQuery) -> None:
        self._versions[str(version.offset)] = version
        self._index.put(str(version.offset), query)
        self._last = max(self._last, version.offset)

    def id_at(self, offset: int) -> str | None:
        found = self._versions.get(str(offset))
        return None if found is None else found.id

    def since(self, offset: int) -> Microseconds:
        found = self._versions.get(str(offset))
        return NEVER if found is None else found.since_us

    def matches(self, documents: pa.Table, reached: Ints, times: Ints, upto: int) -> QueryMatches:
        """Return all matching pairs; a query may occur with a document several times."""
        some = np.flatnonzero(reached <= min(self._last, upto - 1))
        found = self._index.match(documents.take(pa.array(some)))
        rows: Ints = some[found.column("row").to_numpy()]
        versions = [self._versions[offset] for offset in found.column("query").to_pylist()]
        pairs = QueryMatches(versions, rows, found.column("score"), found.column("highlights"))
        offsets = np.fromiter((v.offset for v in versions), np.int64, len(versions))
        since = np.fromiter((v.since_us for v in versions), np.int64, len(versions))
        kept = (reached[rows] <= offsets) & (offsets < upto) & (times[rows] >= since)
        return pairs if kept.all() else pairs.taken(np.flatnonzero(kept).tolist())


def _first_of_each(valid: QueryMatches, back: QueryMatches) -> QueryMatches:
    """Reduce the matches to the first version for each document and query: the valid one, or the first that backfills."""
    if not len(back):
        return valid
    both = QueryMatches(
        valid.versions + back.versions,
        np.concatenate([valid.documents, back.documents]),
        pa.chunked_array(valid.scores.chunks + back.scores.chunks, valid.scores.type),
        pa.chunked_array(valid.highlights.chunks + back.highlights.chunks, valid.highlights.type),
    )
    first: dict[tuple[int, str], int] = {}
    order = sorted(range(len(both)), key=lambda i: both.versions[i].offset)
    for i in order:
        first.setdefault((int(both.documents[i]), both.versions[i].id), i)
    return both.taken(sorted(first.values()))
