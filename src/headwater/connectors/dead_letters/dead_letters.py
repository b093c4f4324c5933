"""Dead letters of every kind: listed, shown, edited, dropped and replayed. `ws.dead()` returns a `DeadLetters`."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.connectors.dead_letter_store.letter_store import (
    OPEN,
    STATES,
    LetterState,
    LetterStore,
    NewestLetters,
    Note,
    refuse_unknown_columns,
    state_from_actions,
    state_in_store,
)
from headwater.core.arguments import text as text_of
from headwater.core.arguments import whole_number
from headwater.core.errors import ConflictError, HeadwaterError, LetterNotFoundError, UsageError
from headwater.log.protocol import Log
from headwater.serving.name_hints import suggest
from headwater.views.dead_letter_actions import LetterAction, conflict, read_actions, write_actions

LISTED = pa.schema(
    [
        ("letter", pa.string()),
        ("kind", pa.string()),
        ("owner", pa.string()),
        ("state", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("error", pa.string()),
        ("row", pa.string()),
        ("who", pa.string()),
        ("reason", pa.string()),
        ("version", pa.int64()),
    ]
)
"""Columns of a list of letters: name, owner, time and error of the rejection, the row as JSON, as it would be replayed, and
the person and reason of the last action."""

_NEAR_MAX = 1_000
"""Number of an owner's letters that are searched for a name that the user may have meant."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay. `taken` were accepted now; `before` had been accepted earlier, or are no longer rejected;
    `left` has the reason for each letter that is still rejected."""

    taken: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no letter is still rejected."""
        return not self.left


@dataclass(frozen=True)
class Page:
    """Dead letters, the newest first, and their total number."""

    letters: Sequence[LetterState]
    total: int


class DeadLetters:
    """The dead letters of a workspace: rows that a source, a view or a sink with `on_error = 'divert'` rejected, and
    messages that a queue moved to its dead letters."""

    def __init__(self, log: Log, stores: Sequence[LetterStore]) -> None:
        self._log = log
        self._stores = stores
        self.unreadable: dict[str, str] = {}
        """By owner, the reason why its letters could not be read when they were last listed."""

    # --- listing ---------------------------------------------------------------------------------------------------

    def list(self, of: str | None = None, state: str = "open", limit: int | None = None) -> pa.Table:
        """Return at most `limit` letters as a table, the newest first: those that wait for an action (`state='open'`), all
        (`'all'`), or those in another state: 'edited', 'dropped', 'replayed' or 'resolved'. `of` is a source, a view, a sink
        or a queue."""
        return table_of(self.find(of, state, limit))

    def find(
        self, of: str | None = None, state: str = "open", limit: int | None = None
    ) -> Sequence[LetterState]:
        """Return letters like `list`, with all actions taken on each."""
        return self.page(of, state, limit).letters

    def page(self, of: str | None = None, state: str = "open", limit: int | None = None) -> Page:
        """Return letters like `find`, and their number: letters beyond the limit are counted without being read."""
        if state not in ("all", *STATES):
            states = ", ".join(("all", *STATES))
            raise UsageError(f"the state of a dead letter is one of {states}, not {state!r}", state=state)
        wanted: tuple[str, ...] = STATES if state == "all" else OPEN if state == "open" else (state,)
        owner = None if of is None else self._owner(of)
        if limit is not None:
            whole_number(limit, "limit", hint="ws.dead().list(limit=20)")
        some, more = self._all(owner, limit if "open" in wanted or limit is None else 0)
        found = [one for one in some if one.state in wanted]
        found.sort(key=lambda one: (_moment(one), one.letter.place, one.id), reverse=True)
        return Page(found[:limit], len(found) + (sum(more.values()) if "open" in wanted else 0))

    def counts(self) -> dict[tuple[str, str], dict[str, int]]:
        """Return the number of letters in each state, by owner and kind."""
        some, more = self._all(None, 0)
        found: dict[tuple[str, str], dict[str, int]] = {}
        for one in some:
            found.setdefault((one.letter.owner, one.letter.kind), dict.fromkeys(STATES, 0))[one.state] += 1
        for owner, count in more.items():
            found.setdefault(owner, dict.fromkeys(STATES, 0))["open"] += count
        return found

    def show(self, letter: str) -> LetterState:
        """Return one letter with its actions; LetterNotFoundError if missing."""
        return self._one(letter)[1]

    def columns(self, letter: str) -> pa.Schema:
        """Return the columns that an edit of a letter may name, with their types; UsageError if it cannot be edited."""
        store, found = self._one(letter)
        return store.columns(found.letter)

    # --- acting ----------------------------------------------------------------------------------------------------

    def edit(
        self,
        letter: str,
        values: Mapping[str, Any],
        *,
        by: str | None = None,
        reason: str | None = None,
        expect: int | None = None,
    ) -> LetterState:
        """Give the row of a letter other values in some columns, to be replayed. The original row and the editor are
        recorded.

        `by` is the person, by default the user of the operating system. `expect` is the `version` of the letter on which the
        decision was based: ConflictError if another action was taken since.
        """
        if not isinstance(values, Mapping):
            raise UsageError(
                "an edit must be a mapping from columns to values",
                hint="edit(letter, {'amount': 5})",
                reason="not-a-mapping",
            )
        store, found = self._one(letter)
        _refuse_settled(found, "edited")
        refuse_unknown_columns(values, store.columns(found.letter), found.id)
        made = store.edited(found, values)
        record = _note(by, reason).record(
            found.letter,
            action="edit",
            original=made.original,
            edited=made.edited,
            edited_arrow=made.edited_arrow,
        )
        self._write([record], expect={found.id: found.version if expect is None else _version(expect)})
        return self._one(found.id)[1]

    def drop(
        self,
        letters: str | Iterable[str] | None = None,
        *,
        of: str | None = None,
        by: str | None = None,
        reason: str | None = None,
        expect: int | None = None,
    ) -> tuple[str, ...]:
        """Leave rows rejected for good: they are no longer listed or replayed, and are counted as dropped. The rows are
        given by their letters, or are all open ones of a source, view, sink or queue. Return the letters that were dropped
        now, without those dropped before."""
        chosen = [one for _, one in self._chosen(letters, of)]
        for one in chosen:
            _refuse_settled(one, "dropped")
        chosen = [one for one in chosen if one.state != "dropped"]
        note = _note(by, reason)
        if chosen:
            versions = {one.id: one.version for one in chosen}
            if expect is not None:
                versions = dict.fromkeys(versions, _version(expect))
            self._write([note.record(one.letter, action="drop") for one in chosen], expect=versions)
        return tuple(one.id for one in chosen)

    def replay(
        self,
        letters: str | Iterable[str] | None = None,
        *,
        of: str | None = None,
        by: str | None = None,
        reason: str | None = None,
        force: bool = False,
    ) -> Replayed:
        """Replay rejected rows after a fix: as they were edited, or once the target accepts them. The rows are given by
        their letters, or are all open ones of a source, view, sink or queue.

        A row is accepted once, however often this is called and wherever it is interrupted. `force` also replays a
        correction that is rejected because a reader would see both the original row and the correction, or because the row
        has changed since.
        """
        note = _note(by, reason)
        chosen = self._chosen(letters, of)
        before = tuple(one.id for _, one in chosen if one.state in ("replayed", "resolved"))
        left: dict[str, str] = {}
        taken: list[str] = []
        groups: dict[tuple[int, str], list[LetterState]] = {}
        for store, one in chosen:
            if one.state not in ("replayed", "resolved"):
                groups.setdefault((self._stores.index(store), one.letter.owner), []).append(one)
        for (number, owner), some in groups.items():
            refused = self._stores[number].replay(owner, some, note, force=force)
            taken += [one.id for one in some if one.id not in refused]
            actions = read_actions(self._log)
            quicker = {
                o.id
                for o in some
                if state_in_store(o.letter, actions, keeps_replayed=True).state == "replayed"
            }
            before += tuple(letter for letter in refused if letter in quicker)
            left |= {letter: why for letter, why in refused.items() if letter not in quicker}
        return Replayed(tuple(taken), before, left)

    # --- finding ---------------------------------------------------------------------------------------------------

    def _all(
        self, owner: str | None, count: int | None
    ) -> tuple[Sequence[LetterState], Mapping[tuple[str, str], int]]:
        """Return the letters in the stores, and former letters on which an action was taken. Of letters without an action,
        at least the newest `count` of each owner are returned; the second value is the number of others, by owner and kind."""
        actions, found, unreadable = read_actions(self._log), dict[str, LetterState](), dict[str, str]()
        more: dict[tuple[str, str], int] = {}
        for store in self._stores:
            for name in store.owners():
                if owner not in (None, name):
                    continue
                try:
                    newest = (
                        NewestLetters(store.letters(name))
                        if count is None
                        else store.newest(name, count, actions)
                    )
                except HeadwaterError as error:
                    unreadable[name] = error.message
                    continue
                found |= {
                    one.id: state_in_store(one, actions, keeps_replayed=store.keeps_replayed)
                    for one in newest.letters
                }
                if newest.more:
                    more[name, store.kind] = newest.more
        for letter, done in actions.letters():
            whose = done[-1].owner
            if letter not in found and owner in (None, whose) and whose not in unreadable:
                found[letter] = state_from_actions(done, len(done))
        self.unreadable = unreadable
        return list(found.values()), more

    def _one(self, letter: str) -> tuple[LetterStore, LetterState]:
        name = text_of(letter, "the name of a dead letter", hint="ws.dead().list() returns them").strip()
        owner, slash, _ = name.partition("/")
        actions, near = read_actions(self._log), list[str]()
        for store in self._stores:
            whose = next((o for o in store.owners() if o.lower() == owner.lower()), None)
            if whose is None or not slash:
                continue
            for one in store.letters(whose, name):
                if one.id.lower() == name.lower():
                    return store, state_in_store(one, actions, keeps_replayed=store.keeps_replayed)
            near += [one.id for one in store.newest(whose, _NEAR_MAX, actions).letters]
        done = next((d for i, d in actions.letters() if i.lower() == name.lower()), None)
        if done is not None:
            store = next(s for s in self._stores if s.kind == done[-1].kind)
            return store, state_from_actions(done, len(done))
        meant = suggest(name, [*near, *(i for i, _ in actions.letters())])
        raise LetterNotFoundError(
            f"there is no dead letter {name!r}",
            hint=f"did you mean {meant}?"
            if meant
            else "`headwater dead list` lists them, as SOURCE/..., VIEW/..., SINK/... or QUEUE/...",
            letter=name,
        )

    def _owner(self, of: str) -> str:
        name = text_of(of, "of", hint="ws.dead().list(of='revenue')")
        every = [o for store in self._stores for o in store.owners()]
        every += [d.owner for _, done in read_actions(self._log).letters() for d in done]
        found = next((o for o in every if o.lower() == name.lower()), None)
        if found is not None:
            return found
        meant = suggest(name, every)
        raise LetterNotFoundError(
            f"no source, view, sink or queue {name!r} has dead letters",
            hint=f"did you mean {meant}?"
            if meant
            else "on_error = 'divert' makes dead letters of rejected rows",
            owner=name,
        )

    def _chosen(
        self, letters: str | Iterable[str] | None, of: str | None
    ) -> Sequence[tuple[LetterStore, LetterState]]:
        if (letters is None) == (of is None):
            raise UsageError(
                "exactly one of `letters` and `of` is required",
                hint="ws.dead().replay('revenue/orders-0-17'), or replay(of='revenue')",
                reason="letters-or-of",
            )
        if letters is not None:
            names = [letters] if isinstance(letters, str) else list(letters)
            return list({one.id: (store, one) for store, one in map(self._one, names)}.values())
        assert of is not None
        waiting = self.find(of)
        by_kind = {store.kind: store for store in self._stores}
        for owner, said in self.unreadable.items():
            raise UsageError(f"the dead letters of {owner!r} cannot be read: {said}", owner=owner)
        return [(by_kind[one.letter.kind], one) for one in waiting]

    def _write(self, actions: Sequence[LetterAction], expect: Mapping[str, int]) -> None:
        try:
            write_actions(self._log, actions, expect)
        except ConflictError as error:
            raise conflict(expect, error) from None


def table_of(found: Sequence[LetterState]) -> pa.Table:
    """Return letters as a table, in the columns of `DeadLetters.list`."""
    last = [one.actions[-1] if one.actions else None for one in found]
    columns: dict[str, Sequence[Any]] = {
        "letter": [one.id for one in found],
        "kind": [one.letter.kind for one in found],
        "owner": [one.letter.owner for one in found],
        "state": [one.state for one in found],
        "at": [_moment(one) or None for one in found],
        "error": [one.letter.error for one in found],
        "row": [one.row for one in found],
        "who": [None if record is None else record.who for record in last],
        "reason": [None if record is None else record.reason for record in last],
        "version": [one.version for one in found],
    }
    arrays = [pa.array(values, LISTED.field(name).type) for name, values in columns.items()]
    return pa.Table.from_arrays(arrays, schema=LISTED)


def _refuse_settled(one: LetterState, what: str) -> None:
    if one.state == "replayed":
        last = one.actions[-1]
        raise UsageError(
            f"{one.id} cannot be {what}: {last.who} has replayed it",
            hint="correct the replayed row where it was written",
            letter=one.id,
            state=one.state,
        )
    if one.state == "resolved":
        raise UsageError(
            f"{one.id} cannot be {what}: its row is no longer rejected", letter=one.id, state=one.state
        )


def _note(by: str | None, reason: str | None) -> Note:
    if by is None:
        try:
            by = getpass.getuser()
        except (KeyError, OSError):  # the user of the process has no name
            by = "unknown"
    why = None if reason is None else text_of(reason, "reason", hint="reason='typo of the shop'")
    return Note(text_of(by, "by", hint="by='anna'"), why)


def _version(expect: int) -> int:
    return whole_number(expect, "expect", hint="expect=ws.dead().show(letter).version")


def _moment(one: LetterState) -> int:
    return one.letter.at or (one.actions[-1].at if one.actions else 0)
