"""Many standing queries at once: put and removed one by one, and matched with batches of documents.

A query is valid from the position at which it was put to before the one at which it was replaced or removed, and a
document is matched with the queries that were valid at its own position. Positions are whoever's who calls; nothing here
knows a log.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.operators.standing import plain
from headwater.operators.standing.fields import Fields
from headwater.operators.standing.nodes import HIGHEST, LOWEST, Query

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
"""What `match` answers: the id of a query, the number of the document's row in the batch, the score, and where in the document the
match is: the field, which of its values (0 where it is no list), and characters from `start` to before `end`."""

Rows = npt.NDArray[np.int64]
Asked = Sequence[tuple[Hashable, Rows]]
HoldsFunction = Callable[[Asked, pa.Table], Sequence[npt.NDArray[np.bool_]]]
"""Which of the rows meet each predicate: the payload of a query and the numbers of the rows that it is asked of."""


@dataclass
class _Version:
    query: Query
    since: int
    until: int = HIGHEST


class QueryIndex:
    """Standing queries over documents of the same fields."""

    def __init__(self, fields: Fields, holds: HoldsFunction | None = None) -> None:
        self.fields = fields
        self._holds = holds
        self._versions: dict[str, list[_Version]] = {}

    def __len__(self) -> int:
        """How many queries are valid now."""
        return sum(versions[-1].until == HIGHEST for versions in self._versions.values())

    def __contains__(self, query_id: str) -> bool:
        versions = self._versions.get(query_id)
        return versions is not None and versions[-1].until == HIGHEST

    def put(self, query_id: str, query: Query, since: int = LOWEST) -> None:
        """Add a query, which replaces the one of that id; it is valid from the position `since`, which is not before the older one's."""
        self.remove(query_id, since)
        self._versions.setdefault(query_id, []).append(_Version(query, since))

    def remove(self, query_id: str, until: int = LOWEST) -> bool:
        """End a query before the position `until`; False if there is none of that id."""
        if query_id not in self:
            return False
        last = self._versions[query_id][-1]
        last.until = until
        if last.until <= last.since:
            self._versions[query_id].pop()
            if not self._versions[query_id]:
                del self._versions[query_id]
        return True

    def forget(self, before: int) -> None:
        """Drop the versions that no document from position `before` on can meet."""
        for query_id, versions in list(self._versions.items()):
            kept = [version for version in versions if version.until > before]
            if kept:
                self._versions[query_id] = kept
            else:
                del self._versions[query_id]

    def match(self, documents: pa.Table, at: Rows | None = None) -> pa.Table:
        """The matches of documents, by row and by the id of the query. `at` are the positions of the documents; without it they are
        matched with the queries that are valid now.
        """
        found = []
        names = [field.name for field in self.fields.columns]
        for row, document in enumerate(plain.documents_of(self.fields, documents)):
            position = HIGHEST - 1 if at is None else int(at[row])

            def holds(payload: Hashable, row: int = row) -> bool:
                assert self._holds is not None, "predicates need somebody to ask"
                return bool(self._holds([(payload, np.array([row]))], documents)[0][0])

            for query_id, versions in sorted(self._versions.items()):
                for version in versions:
                    if version.since <= position < version.until:
                        match = plain.match(version.query, document, holds)
                        if match is not None:
                            marks = [
                                {"field": names[h.field], "item": h.item, "start": h.start, "end": h.end}
                                for h in match.highlights
                            ]
                            found.append(
                                {"query": query_id, "row": row, "score": match.score, "highlights": marks}
                            )
        return pa.Table.from_pylist(found, schema=MATCHES)
