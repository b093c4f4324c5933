"""Row checksums of appends, which distinguish a producer's retry from other rows under a sequence that was already written.

Each row hashes to 64 bits (`headwater.core.hashing.sum_of_rows`), and the hashes of a topic's rows are added: their order,
batches and partitions do not matter. Rows are hashed as they are stored. An encrypted value differs each time that it is
encrypted; instead a code of the value is hashed that cannot be computed without the subject's key. Private values cannot be
guessed from a sum, and once the key is destroyed private values can no longer be compared: then only the other columns count.

Only appends that name a producer and a sequence get a sum. A repeat whose receipt has no sums, because the receipt is from an
older version or its producer does not ask for them, is answered with the receipt whatever the rows are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import SequenceReusedError
from headwater.core.hashing import sum_of_rows
from headwater.core.positions import Receipt
from headwater.log.protocol import Producer
from headwater.privacy.column_encryption import value_codes
from headwater.privacy.subject_keys import SubjectKeys

Sums = Mapping[str, Sequence[Any]]
"""Sums by topic incarnation (a string, as in JSON): the schema's version, the number of rows, their sum; and if columns are
private, the sum without these columns, and the number of keys destroyed by then."""

_WORD = 2**64


@dataclass
class RowSum:
    """Running sum of rows of one topic, under one definition. `topic` is the topic's incarnation, which is never reused."""

    topic: int
    definition: TopicDefinition
    rows: int = 0
    total: int = 0
    public: int = 0
    """Sum without the private columns; 0 if there are none."""

    def add(self, plain: pa.RecordBatch, stored: pa.RecordBatch, keys: SubjectKeys) -> None:
        """Add rows: `plain` as they were given, `stored` as they are stored."""
        private = [column for column, _ in self.definition.private]
        columns = dict(zip(stored.schema.names, stored.columns, strict=True))
        if private:
            public = [column for name, column in columns.items() if name not in private]
            self.public = (self.public + sum_of_rows(public, stored.num_rows)) % _WORD
            for name in private:
                columns[name] = value_codes(plain.column(name), columns[name], keys)
        self.rows += stored.num_rows
        self.total = (self.total + sum_of_rows(list(columns.values()), stored.num_rows)) % _WORD

    def plain(self, keys: SubjectKeys) -> list[Any]:
        """Return the sum in the form that is stored, see `Sums`."""
        found = [self.definition.schema_version, self.rows, f"{self.total:016x}"]
        if self.definition.private:
            found += [f"{self.public:016x}", len(keys.destroyed())]
        return found


def sums_of(totals: Sequence[RowSum], keys: SubjectKeys) -> dict[str, list[Any]]:
    """Return the sums of an append, by topic; topics without rows are left out."""
    return {str(total.topic): total.plain(keys) for total in totals if total.rows}


def check_repeat(producer: Producer, receipt: Receipt, known: Sums | None, given: Sums | None) -> None:
    """Raise SequenceReusedError if the rows of a repeated sequence differ from the first ones. Passes if either sum is
    missing."""
    if known is None or given is None:
        return
    if (were := _rows(known)) != (are := _rows(given)):
        what, reason = f"the first append had {were:,} rows, this one has {are:,}", "other-count"
    elif known.keys() != given.keys():
        what, reason = "the first append had rows for other topics", "other-topics"
    elif not all(_same(known[topic], given[topic]) for topic in known):
        what, reason = "values of the rows differ", "other-values"
    else:
        return
    raise SequenceReusedError(
        f"sequence {producer.sequence} of producer {producer.name!r} was already written with other rows",
        detail=f"{what}; nothing of this append was written, and the first append is at {receipt}",
        hint="retry an append with the same rows; give other rows a higher sequence",
        producer=producer.name,
        sequence=producer.sequence,
        receipt=str(receipt),
        reason=reason,
        expected=were,
        actual=are,
    )


def _rows(sums: Sums) -> int:
    return sum(one[1] for one in sums.values())


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two appends have the same rows of a topic. Values under different schema versions are not compared."""
    if one[1] != other[1]:
        return False
    if one[0] != other[0] or len(one) != len(other):
        return True
    if len(one) > 3 and one[4] != other[4]:  # a destroyed key can no longer produce codes
        return bool(one[3] == other[3])
    return bool(one[2] == other[2])
