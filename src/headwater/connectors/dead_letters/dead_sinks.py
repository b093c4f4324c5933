"""Dead letters of sinks: rows of a view that a sink's target rejected, as recorded in the target's checkpoint.

A letter is identified by its row: the same row rejected again by the same sink is the same letter. A replay writes the row
to the target again, in one step with the checkpoint that no longer lists it as rejected: so it is accepted once, wherever
the replay is interrupted. Rows of a target that is kept equal to a view cannot be edited, since it would no longer be equal;
a webhook and a function, whose contents are not compared, may be given another row.

Rows are written by the process that runs the sink. If that is another process, a catalog entry requests the retry.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from headwater.connectors.dead_letter_store.letter_store import (
    Edited,
    Letter,
    LetterState,
    NewestLetters,
    Note,
    as_json,
    fitted,
    packed,
    unpacked,
)
from headwater.connectors.dead_letter_store.sink_letters import incarnation_of, letter_ids, letters_topic
from headwater.core.clock import Clock
from headwater.core.errors import ConflictError, HeadwaterError, LogTimeoutError, UsageError
from headwater.log.protocol import Entry, Log
from headwater.operators.zset.delta import take_rows
from headwater.sinks.registry import is_readable, wanted_of
from headwater.views.dead_letter_actions import LetterActions, write_actions

if TYPE_CHECKING:
    from headwater.connectors.manage.sink_manager import Sinks

RETRY = "retry"
"""Kind of catalog entry that requests a retry of rows from the process that runs a sink."""
WAIT_S = 30.0
"""Maximum time to wait for the retry by another process."""


class SinkLetterStore:
    """The dead-letter store of sinks."""

    kind: ClassVar[str] = "sink"
    keeps_replayed: ClassVar[bool] = False

    def __init__(self, log: Log, sinks: Sinks, clock: Clock) -> None:
        self._log = log
        self._sinks = sinks
        self._clock = clock

    def owners(self) -> list[str]:
        """Return the sinks that divert rows, or once did: those with a topic of rejected rows."""
        topics = self._log.topics()
        return [name for name in sorted(self._sinks.definitions()) if letters_topic(name) in topics]

    def letters(self, owner: str, letter: str | None = None) -> list[Letter]:
        """Return the rejected rows recorded in the target's checkpoint."""
        rejected, incarnation = self._sinks.rejected(owner), incarnation_of(self._log, owner)
        found: dict[str, Letter] = {}
        rows = rejected.rows.to_pylist()
        for place, name in enumerate(letter_ids(owner, rejected)):
            copies = found[name].copies + 1 if name in found else 1
            found[name] = Letter(
                name,
                self.kind,
                owner,
                rejected.reasons[place],
                as_json(rows[place]),
                int(rejected.letters[place]),
                incarnation,
                copies,
            )
        return list(found.values())

    def newest(self, owner: str, count: int, actions: LetterActions) -> NewestLetters:
        """Return all letters: a sink with more than a few rejected rows stops."""
        return NewestLetters(self.letters(owner))

    # --- editing ---------------------------------------------------------------------------------------------------

    def columns(self, letter: Letter) -> pa.Schema:
        """Return the columns of the sink's view; UsageError if the target is compared with the view."""
        made = self._sinks.definitions()[letter.owner]
        if is_readable(made):
            raise UsageError(
                f"a row of sink {made.name!r} cannot be edited: its target must equal view {made.view!r}",
                hint="correct the row in the input of the view; or make the target accept it, and replay the letter",
                sink=made.name,
                view=made.view,
                reason="target-equals-view",
            )
        if wanted_of(made).mode == "changelog":
            raise UsageError(
                f"a row of sink {made.name!r} cannot be edited: a later retraction in the changelog has the original row",
                hint="correct the row in the input of the view; or drop the letter",
                sink=made.name,
                reason="changelog",
            )
        return self._sinks.declared.shape(letter.owner).schema

    def edited(self, known: LetterState, values: Mapping[str, Any]) -> Edited:
        """Return the row, as last edited, with other values."""
        shape = self._sinks.declared.shape(known.letter.owner)
        rejected = self._sinks.rejected(known.letter.owner)
        places = [p for p, name in enumerate(letter_ids(shape.sink, rejected)) if name == known.id]
        if not places:
            raise UsageError(
                f"{known.id} cannot be edited: its row is no longer rejected",
                letter=known.id,
                state="resolved",
            )
        original = take_rows(rejected.rows, np.array(places[:1])).to_pylist()[0]
        edit, row = known.edit, dict(original)
        if edit is not None and edit.edited_arrow is not None:
            row |= unpacked(edit.edited_arrow).to_pylist()[0]
        for name in shape.key:
            if name in values and values[name] != original[name]:
                raise UsageError(
                    f"{name!r} is the key of sink {shape.sink!r}, and the key of a row cannot be edited",
                    hint=f"correct the row in the input of view {shape.view}",
                    sink=shape.sink,
                    column=name,
                )
        fit = fitted({**row, **values}, shape.schema, known.id)
        return Edited(as_json(original), as_json(fit.to_pylist()[0]), packed(fit))

    # --- replaying -------------------------------------------------------------------------------------------------

    def replay(self, owner: str, chosen: Sequence[LetterState], note: Note, *, force: bool) -> dict[str, str]:
        """Record the request, let the target retry, and record which rows it accepted."""
        ids = [one.id for one in chosen]
        asked = [note.record(one.letter, action="replay", edited=_text(one)) for one in chosen]
        try:
            write_actions(self._log, asked, {one.id: one.version for one in chosen})
        except ConflictError:
            return dict.fromkeys(ids, "another action was recorded meanwhile: read the letter again")
        try:
            if not self._request_retry(owner, ids):
                self._sinks.retry(owner, ids)
            left = {one.id: one.error for one in self.letters(owner) if one.id in ids}
        except HeadwaterError as error:
            return dict.fromkeys(ids, error.message)
        taken = [one for one in chosen if one.id not in left]
        done = [note.record(one.letter, action="replay", settled=True, edited=_text(one)) for one in taken]
        # another process has recorded a later action
        with suppress(ConflictError):
            if done:
                write_actions(self._log, done, {one.id: one.version + 1 for one in taken})
        return left

    def _request_retry(self, sink: str, ids: Sequence[str]) -> bool:
        """Request a retry from the process that runs the sink, if that is another one, and wait until it has retried. Return
        whether another process did."""
        if not self._sinks.runs_elsewhere(sink):
            return False
        name = f"{sink}_{uuid.uuid4().hex[:12]}"
        entry = self._log.put_entry(RETRY, name, {"sink": sink, "letters": list(ids)}, expect=None)
        until = self._clock.steady_ms() + WAIT_S * 1_000
        while name in self._log.entries(RETRY):
            late = self._clock.steady_ms() > until
            if late or not self._sinks.runs_elsewhere(sink):
                try:
                    self._log.drop_entry(RETRY, name, expect=entry.sequence)
                except ConflictError:  # the other process has just retried
                    return True
                if late:
                    raise LogTimeoutError(
                        f"the process that runs sink {sink!r} has not retried within {WAIT_S:g} s", sink=sink
                    )
                return False
            self._log.wait_commit(self._log.sequence(), 100)
        return True


class Retrying:
    """Retries rows on request of other processes, next to an engine that runs the sinks."""

    def __init__(self, log: Log, retry: Callable[[str, Collection[str]], object]) -> None:
        self._log = log
        self._retry = retry
        self._begun: dict[int, threading.Thread] = {}
        """Threads by the sequence of the commit with the request."""

    def start_requested(self) -> None:
        """Start the requested retries, each in a thread of its own, since a target may be slow."""
        for entry in self._log.entries(RETRY).values():
            if entry.sequence not in self._begun:
                name = f"retry {entry.document['sink']}"
                thread = threading.Thread(target=self._carry_out, args=(entry,), name=name, daemon=True)
                self._begun[entry.sequence] = thread
                thread.start()

    def stop(self) -> None:
        """Wait for the retries under way."""
        for thread in self._begun.values():
            thread.join()
        self._begun.clear()

    def _carry_out(self, entry: Entry) -> None:
        sink = entry.document["sink"]
        work = f"retry of dead letters of sink {sink}"
        try:
            self._retry(sink, entry.document["letters"])
            self._log.faults.clear("background", work)
        except HeadwaterError:
            pass
            # The state of the sink has the error; the requester sees that the rows are still dead
            # letters.
        except Exception as error:  # noqa: BLE001 - a thread has no caller to raise to
            self._log.faults.report("background", work, error)
        with suppress(HeadwaterError):
            self._log.drop_entry(RETRY, entry.name, expect=entry.sequence)


def _text(one: LetterState) -> str | None:
    return None if one.edit is None else one.edit.edited
