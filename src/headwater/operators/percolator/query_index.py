"""The index of stored queries: added and removed one by one, and matched against batches of documents.

A query is valid from the position at which it was added to before the one at which it was replaced or removed, and a
document is matched against the queries valid at its own position. The caller defines positions; the index does not
depend on a log. Results equal those of `query_reference`; the index looks up the few queries that a document can match
by its words and values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.text_analysis import Lexicon
from headwater.operators.percolator.documents import DocumentBatch
from headwater.operators.percolator.evaluation import candidates, met, scored
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.query_nodes import HIGHEST, LOWEST, ParsedQuery
from headwater.operators.percolator.query_programs import Programs
from headwater.operators.percolator.query_segments import AtomIndex, QuerySegment, derive
from headwater.operators.percolator.term_lookup import Lookup
from headwater.operators.percolator.terms import Atoms
from headwater.operators.percolator.tokens import distinct

HIGHLIGHT = pa.struct(
    [("field", pa.string()), ("item", pa.int32()), ("start", pa.int32()), ("end", pa.int32())]
)
MATCHES = pa.schema(
    [
        ("query", pa.string()),
        ("row", pa.int64()),
        ("score", pa.float64()),
        ("highlights", pa.list_(HIGHLIGHT)),
    ]
)
"""Schema of the result of `match`: the id of a query, the row number of the document in the batch, the score, and the
locations of the match in the document: the field, the index of the value (0 if the field is not a list), and characters
from `start` to before `end`."""

Ints = npt.NDArray[np.int64]
Asked = Sequence[tuple[Hashable, Ints]]
HoldsFunction = Callable[[Asked, pa.Table], Sequence[npt.NDArray[np.bool_]]]
"""holds(asked, documents): returns, for each predicate payload and its row numbers, a mask of the rows that satisfy it."""

BATCH_ROWS, BATCH_BYTES = 1024, 4 << 20
"""Maximum number and approximate maximum size of the documents that are tokenized at a time."""
WAITING_MAX = 8_192
"""Number of new queries buffered before they become a segment, which uses far less memory."""
LEARNT = 1 << 16
"""Number of counted documents after which a segment keeps its choice of atoms."""


class QueryIndex:
    """Stored queries over documents with the same fields. Not thread-safe."""

    def __init__(self, fields: Fields, holds: HoldsFunction | None = None) -> None:
        self.fields = fields
        self._holds = holds
        self._atoms = Atoms(fields)
        self._texts = Lookup(self._atoms, Lexicon(fields.analysis))
        self._keywords = Lookup(self._atoms, Lexicon(None))
        self._current: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._payloads: dict[int, Hashable] = {}
        self._since = np.zeros(1024, dtype=np.int64)
        self._until = np.zeros(1024, dtype=np.int64)
        self._free: list[int] = []
        self._waiting = Programs(self._atoms)
        self._segments: list[tuple[QuerySegment, AtomIndex | None]] = []
        self._kept = LOWEST

    def __len__(self) -> int:
        """Number of queries that are valid now."""
        return len(self._current)

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._current

    @property
    def nbytes(self) -> int:
        """Memory used by the columns of the queries, in bytes, without their ids and words."""
        return sum(segment.nbytes for segment, _ in self._segments)

    def put(self, query_id: str, query: ParsedQuery, since: int = LOWEST) -> None:
        """Add a query, or replace the query with this id, valid from position `since`, which must not precede the old
        query's."""
        number = self._free[-1] if self._free else len(self._ids)
        payload = self._waiting.add(number, query)
        self.remove(query_id, since)
        if number < len(self._ids):
            self._ids[self._free.pop()] = query_id
        else:
            self._ids.append(query_id)
            if number == len(self._since):
                self._since = np.append(self._since, np.zeros_like(self._since))
                self._until = np.append(self._until, np.zeros_like(self._until))
        self._since[number], self._until[number] = since, HIGHEST
        self._current[query_id] = number
        if payload is not None:
            self._payloads[number] = payload
        if len(self._waiting) >= WAITING_MAX:
            self._gather()

    def remove(self, query_id: str, until: int = LOWEST) -> bool:
        """End the validity of a query before position `until`; False if there is none with that id."""
        number = self._current.pop(query_id, None)
        if number is None:
            return False
        self._until[number] = max(until, self._since[number])
        return True

    def forget(self, before: int) -> None:
        """Drop the versions that no document from position `before` on can match."""
        self._kept = max(self._kept, before)

    def _release(self, number: int) -> None:
        self._ids[number] = None
        self._payloads.pop(number, None)
        self._free.append(number)

    def match(self, documents: pa.Table, at: Ints | None = None) -> pa.Table:
        """Return the matches of documents, ordered by row and query id.

        `at` are the positions of the documents; without it they are matched against the queries that are valid now.
        """
        self._settle()
        found = []
        size = self._batch_rows(documents)
        for begin in range(0, documents.num_rows, size):
            positions = None if at is None else np.asarray(at[begin : begin + size])
            found.append(self._match(documents, begin, min(size, documents.num_rows - begin), positions))
        return pa.concat_tables(found) if found else MATCHES.empty_table()

    def _match(self, documents: pa.Table, begin: int, size: int, at: Ints | None) -> pa.Table:
        batch = DocumentBatch(self._atoms, self._texts, self._keywords, documents.slice(begin, size))
        parts = []
        for which, (segment, anchors) in enumerate(self._segments):
            assert anchors is not None
            for slot, row in candidates(segment, anchors, batch):
                valid = self._valid(segment.numbers[slot], row, at)
                slot, row = slot[valid], row[valid]
                matched = met(segment, slot, row, batch)
                if matched.any():
                    parts.append((np.full(int(matched.sum()), which), slot[matched], row[matched]))
        self._atoms.count(batch.active, np.diff(batch.active_at), size)
        if not parts:
            return MATCHES.empty_table()
        place, slot, row = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return self._answer(documents, begin, batch, place, slot, row)

    def _valid(self, numbers: npt.NDArray[np.int32], row: Ints, at: Ints | None) -> npt.NDArray[np.bool_]:
        if at is None:
            now: npt.NDArray[np.bool_] = self._until[numbers] == HIGHEST
            return now
        position = at[row]
        then: npt.NDArray[np.bool_] = (self._since[numbers] <= position) & (position < self._until[numbers])
        return then

    def _answer(
        self, documents: pa.Table, begin: int, batch: DocumentBatch, place: Ints, slot: Ints, row: Ints
    ) -> pa.Table:
        """Evaluate predicates, then return the matches as a table."""
        number = np.zeros(len(slot), dtype=np.int64)
        score = np.zeros(len(slot))
        marks: list[tuple[Ints, Ints, Ints]] = []
        for which in np.unique(place).tolist():
            its = np.flatnonzero(place == which)
            segment = self._segments[which][0]
            number[its] = segment.numbers[slot[its]]
            score[its], owner, token, field = scored(segment, slot[its], row[its], batch)
            marks.append((its[owner], token, field))
        kept = self._with_predicates(documents, begin, number, row, score)
        _, firsts = distinct(number * batch.size + row)  # a pair may occur twice
        firsts = firsts[kept[firsts]]
        names = pa.array([self._ids[one] for one in number[firsts].tolist()], pa.string())
        found = pa.table([pa.array(row[firsts]), names], names=["row", "query"])
        places = np.asarray(pc.sort_indices(found, [("row", "ascending"), ("query", "ascending")])).astype(
            np.int64
        )
        order = firsts[places]
        target = np.full(len(number), -1, dtype=np.int64)
        target[order] = np.arange(len(order))
        owner, token, field = (np.concatenate(columns) for columns in zip(*marks, strict=True))
        return pa.Table.from_arrays(
            [
                names.take(pa.array(places)),
                pa.array(row[order] + begin),
                pa.array(score[order]),
                self._highlights(batch, target[owner], token, field, len(order)),
            ],
            schema=MATCHES,
        )

    def _with_predicates(
        self, documents: pa.Table, begin: int, number: Ints, row: Ints, score: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        """Evaluate predicates: return a mask of the matches that remain, and add 1 to the score of those with a predicate."""
        kept = np.ones(len(number), dtype=np.bool_)
        if not self._payloads:
            return kept
        asked: list[tuple[Hashable, Ints]] = []
        places = []
        for one in np.unique(number).tolist():
            if one in self._payloads:
                its = np.flatnonzero(number == one)
                places.append(its)
                asked.append((self._payloads[one], row[its] + begin))
        if asked:
            assert self._holds is not None, "an index with predicates needs a function that evaluates them"
            for its, answer in zip(places, self._holds(asked, documents), strict=True):
                kept[its] = answer
                score[its] += 1.0
        return kept

    def _highlights(
        self, batch: DocumentBatch, owner: Ints, token: Ints, field: Ints, count: int
    ) -> pa.Array:
        """Return the distinct words of each match, in the order of the fields and of the text."""
        there = owner >= 0
        tokens = max(len(batch.token_row), 1)
        keys, firsts = distinct(owner[there] * tokens + token[there])
        owner, token, field = keys // tokens, keys % tokens, field[there][firsts]
        names = pa.array([column.name for column in self.fields.columns], pa.string())
        columns = [names.take(pa.array(field)), *(pa.array(c[token].astype(np.int32)) for c in batch.spans)]
        spans = pa.StructArray.from_arrays(columns, fields=list(HIGHLIGHT))
        at = np.searchsorted(owner, np.arange(count + 1)).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(at), spans, type=pa.list_(HIGHLIGHT))

    def _batch_rows(self, documents: pa.Table) -> int:
        names = [field.name for field in self.fields.columns if not field.ordered]
        total = sum(int(documents.column(name).nbytes) for name in names)
        each = max(total // max(documents.num_rows, 1), 1)
        return int(max(1, min(BATCH_ROWS, BATCH_BYTES // each)))

    # Segments.

    def _settle(self) -> None:
        """Index new queries, and rebuild the atom index of segments whose statistics have changed much."""
        self._gather()
        self._sweep()
        for place, (segment, anchors) in enumerate(self._segments):
            seen = 0 if anchors is None else anchors.documents
            if anchors is None or (seen < LEARNT and self._atoms.documents > 4 * seen):
                self._segments[place] = segment, derive(segment, self._atoms)

    def _gather(self) -> None:
        """Turn the buffered queries into a segment, and merge segments of similar size."""
        if not self._waiting:
            return
        segment = self._alive(QuerySegment.of(self._waiting))
        self._waiting = Programs(self._atoms)
        if len(segment):
            self._segments.append((segment, None))
        while len(self._segments) > 1 and len(self._segments[-2][0]) < 2 * len(self._segments[-1][0]):
            (last, _), (before, _) = self._segments.pop(), self._segments.pop()
            self._segments.append((self._alive(before).and_then(self._alive(last)), None))

    def _alive(self, segment: QuerySegment) -> QuerySegment:
        """Return the segment without the versions that no document can match any more."""
        until = self._until[segment.numbers]
        dead = until <= np.maximum(self._since[segment.numbers], self._kept)
        if not dead.any():
            return segment
        for number in segment.numbers[dead].tolist():
            self._release(number)
        return segment.only(np.flatnonzero(~dead))

    def _sweep(self) -> None:
        """Rebuild segments of which more than half is dead, and remove unused atoms."""
        swept = False
        for place, (segment, _) in enumerate(self._segments):
            until = self._until[segment.numbers]
            dead = until <= np.maximum(self._since[segment.numbers], self._kept)
            if 2 * int(dead.sum()) > len(segment):
                alive = self._alive(segment)
                self._segments[place] = alive, None
                swept = True
        if swept:
            self._segments = [one for one in self._segments if len(one[0])]
            used = np.zeros(len(self._atoms), dtype=np.bool_)
            for segment, _ in self._segments:
                used[segment.leaf_atom] = True
                used[segment.pick_atom] = True
            self._atoms.keep(used)
