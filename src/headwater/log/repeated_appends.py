"""Repeated sequences: what the rows of an append add up to, so that a producer's retry is told from other rows under its number.

Each row gives 64 bits by its values (`headwater.core.hashing.sum_of_rows`), and the rows of a topic are added up: their order, their
batches and their partitions do not matter. Rows are taken as they are stored. An encrypted value differs each time that it is
encrypted; in its place stands a code of the value that nobody can make without the subject's key. Nothing of a private value can be
guessed from a sum, and once the key is destroyed nobody can tell any more whether two private values are the same: then the other
columns decide.

Only appends that name a producer and a sequence are added up. A receipt without sums, because it is from an older version or its
producer does not ask for them, is answered whatever the rows are.
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
"""By the number of a topic, as JSON has it: the schema's version, the rows, their sum; and where columns are private the sum without
these, and how many keys were destroyed by then."""

_WORD = 2**64


@dataclass
class RowSum:
    """What some rows of one topic add up to, under one definition. `topic` is the topic's number, which no other ever has."""

    topic: int
    definition: TopicDefinition
    rows: int = 0
    total: int = 0
    public: int = 0
    """Without private columns, if there are any."""

    def add(self, plain: pa.RecordBatch, stored: pa.RecordBatch, keys: SubjectKeys) -> None:
        """Take in rows: as they were given, and as they are stored."""
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
        """What is kept of it."""
        found = [self.definition.schema_version, self.rows, f"{self.total:016x}"]
        if self.definition.private:
            found += [f"{self.public:016x}", len(keys.destroyed())]
        return found


def sums_of(totals: Sequence[RowSum], keys: SubjectKeys) -> dict[str, list[Any]]:
    """The sums of an append, by topic; topics without rows are left out."""
    return {str(total.topic): total.plain(keys) for total in totals if total.rows}


def check_repeat(producer: Producer, receipt: Receipt, known: Sums | None, given: Sums | None) -> None:
    """SequenceReusedError if the rows of a repeated sequence are other rows than the first ones, as far as that is known."""
    if known is None or given is None:
        return
    if (were := _rows(known)) != (are := _rows(given)):
        what = f"the first append had {were:,} rows, this one has {are:,}"
    elif known.keys() != given.keys():
        what = "the first append had rows of other topics"
    elif not all(_same(known[topic], given[topic]) for topic in known):
        what = "values of the rows differ"
    else:
        return
    raise SequenceReusedError(
        f"sequence {producer.sequence} of producer {producer.name!r} is already written, with other rows",
        detail=f"{what}; nothing of this append was written, and the first append is at {receipt}",
        hint="retry an append with the same rows; give other rows a higher sequence",
        producer=producer.name,
        sequence=producer.sequence,
        receipt=str(receipt),
    )


def _rows(sums: Sums) -> int:
    return sum(one[1] for one in sums.values())


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two appends have the same rows of a topic. The values of two versions of a schema are not compared."""
    if one[1] != other[1]:
        return False
    if one[0] != other[0] or len(one) != len(other):
        return True
    if len(one) > 3 and one[4] != other[4]:  # a key that is destroyed gives no codes any more
        return bool(one[3] == other[3])
    return bool(one[2] == other[2])
