"""Dead letters of queues: messages that were delivered too often, from the queue's topic `<queue>.dead`.

A replay makes a message available again, as if it had never been delivered, in one append with the record of the action. An
edited message is delivered as edited; the record in the topic stays unchanged, since others read it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.connectors.dead_letter_store.letter_store import (
    Edited,
    Letter,
    LetterState,
    NewestLetters,
    Note,
)
from headwater.core.errors import ConflictError, UsageError
from headwater.core.json_csv import as_json
from headwater.log.protocol import Log
from headwater.queues.encrypted_messages import opened, sealed, shown_row
from headwater.queues.message_positions import place_of, shown
from headwater.queues.queue_client import Ledgers, QueueRequest
from headwater.queues.queue_definition import QUEUE, QueueDefinition, entry_of
from headwater.queues.queue_records import Op, to_batch
from headwater.views.dead_letter_actions import LetterActions, write_actions


class QueueLetterStore:
    """The dead-letter store of queues."""

    kind: ClassVar[str] = "queue"
    keeps_replayed: ClassVar[bool] = False

    def __init__(self, log: Log, ledgers: Callable[[], Ledgers]) -> None:
        self._log = log
        self._ledgers = ledgers

    def owners(self) -> list[str]:
        """Return all queues."""
        return sorted(self._log.entries(QUEUE))

    def letters(self, owner: str, letter: str | None = None) -> list[Letter]:
        """Return the messages that are dead now, with their last errors."""
        entry = entry_of(self._log, owner)
        ledger = self._ledgers().of(owner)
        # an empty request moves messages that were delivered too often to the dead letters
        ledger.submit(QueueRequest())
        with ledger.locked():
            dead = set(ledger.current().dead)
        return [
            Letter(
                f"{entry.name}/{shown(place)}",
                self.kind,
                entry.name,
                row["error"],
                row["row"],
                row["at"],
                entry.sequence,
            )
            for place, row in self._rows(ledger.queue).items()
            if place in dead
        ]

    def newest(self, owner: str, count: int, actions: LetterActions) -> NewestLetters:
        """Return all letters."""
        return NewestLetters(self.letters(owner))

    def count_open(self, owner: str, actions: LetterActions) -> int:
        """Return the number of messages that wait for an action, without reading them."""
        entry, ledger = entry_of(self._log, owner), self._ledgers().of(owner)
        with ledger.locked():
            dead = {(f"{entry.name}/{shown(place)}", entry.sequence) for place in ledger.current().dead}
        return len(dead.difference(actions.dropped.get(entry.name, ())))

    def _rows(self, queue: QueueDefinition) -> dict[int, dict[str, Any]]:
        """Return the last record about each message that was ever moved to the dead letters."""
        found: dict[int, dict[str, Any]] = {}
        for partition, info in self._log.partitions(queue.dead_topic).items():
            columns = ["partition", "offset", "error", "row", "row_arrow", "_appended_at"]
            for batch in self._log.read(queue.dead_topic, partition, info.first, info.end, columns):
                times = batch.column("_appended_at").cast(pa.int64()).to_pylist()
                for row, at in zip(batch.to_pylist(), times, strict=True):
                    found[place_of(row["partition"], row["offset"])] = {**row, "at": at}
        return found

    # --- editing ---------------------------------------------------------------------------------------------------

    def columns(self, letter: Letter) -> pa.Schema:
        """Return the columns of the queue's topic."""
        return self._log.topic(self._queue(letter).topic).given.schema

    def edited(self, known: LetterState, values: Mapping[str, Any]) -> Edited:
        """Return the message, as last edited, with other values; it conforms to its topic."""
        queue = self._queue(known.letter)
        topic = self._log.topic(queue.topic)
        row = self._row(known).to_pylist()[0]
        for name in queue.key:
            if name in values and values[name] != row[name]:
                raise UsageError(
                    f"{name!r} is the key of queue {queue.name!r}, and the key of a message cannot be edited",
                    hint=f"append the intended row to {topic.name}, and drop {known.id}",
                    queue=queue.name,
                    column=name,
                )
        fit = conform([{**row, **values}], topic).select(topic.given.schema.names)
        edited = as_json(shown_row(topic, fit.to_pylist()[0]))
        return Edited(known.letter.row, edited, sealed(self._log, topic, fit))

    def _queue(self, letter: Letter) -> QueueDefinition:
        return QueueDefinition.from_entry(entry_of(self._log, letter.owner))

    def _row(self, known: LetterState) -> pa.Table:
        topic = self._log.topic(self._queue(known.letter).topic)
        if known.edit is not None and known.edit.edited_arrow is not None:
            return opened(self._log, topic, known.edit.edited_arrow)
        row = self._rows(self._queue(known.letter)).get(_place(known.letter))
        if row is None:
            raise UsageError(
                f"{known.id} cannot be edited: its row is no longer rejected",
                letter=known.id,
                state="resolved",
            )
        return opened(self._log, topic, row["row_arrow"])

    # --- replaying -------------------------------------------------------------------------------------------------

    def replay(self, owner: str, chosen: Sequence[LetterState], note: Note, *, force: bool) -> dict[str, str]:
        """Make each message available again, in one append with the record of the action."""
        ledger = self._ledgers().of(owner)
        schema = self._log.topic(ledger.queue.state_topic).row_schema
        left: dict[str, str] = {}
        for one in chosen:
            if one.state == "dropped":
                left[one.id] = f"it was dropped by {one.actions[-1].who}; an edit reopens it"
                continue
            edit = one.edit
            keys = (
                ledger.keys_of(self._row(one).combine_chunks().to_batches()[0]) if ledger.queue.key else None
            )
            body = None if edit is None else edit.edited_arrow
            op = Op("replay", np.array([_place(one.letter)]), keys=keys, body=body)
            text = None if edit is None else edit.edited
            try:
                write_actions(
                    self._log,
                    [note.record(one.letter, action="replay", settled=True, edited=text)],
                    {one.id: one.version},
                    rows={ledger.queue.state_topic: to_batch([op], schema)},
                )
            except ConflictError:
                left[one.id] = "another action was recorded meanwhile: read the letter again"
        return left


def _place(letter: Letter) -> int:
    partition, _, offset = letter.id.partition("/")[2].partition("-")
    return place_of(int(partition), int(offset))
