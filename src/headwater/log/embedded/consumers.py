"""Consumers of the embedded log: cursors, and groups that share partitions among members."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from headwater.core.errors import WorkspaceMissingError
from headwater.log.embedded.append import move_json
from headwater.log.embedded.base import LogFolder, canonical_topic, topic_of
from headwater.log.embedded.journal.journal_state import JournalState
from headwater.log.embedded.preconditions import check_moves
from headwater.log.group_assignment import share_out
from headwater.log.protocol import CursorInfo, CursorMove, GroupInfo


class LogConsumers:
    """Implements the methods of `headwater.log.protocol.Log` for cursors and groups."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder

    def cursor(self, topic: str, name: str) -> CursorInfo | None:
        """See `Log.cursor`."""
        self._folder.journal.refresh()
        return self._folder.journal.state.cursors.get(
            (canonical_topic(self._folder.journal.state, topic), name)
        )

    def cursors(self, topic: str | None = None) -> Sequence[CursorInfo]:
        """See `Log.cursors`."""
        self._folder.journal.refresh()
        wanted = None if topic is None else canonical_topic(self._folder.journal.state, topic)
        return [c for (t, _), c in sorted(self._folder.journal.state.cursors.items()) if wanted in (None, t)]

    def create_cursor(self, topic: str, name: str, positions: Mapping[int, int], hold: bool) -> CursorInfo:
        """See `Log.create_cursor`."""

        def change(state: JournalState) -> dict[str, Any] | None:
            of = topic_of(state, topic).definition.name
            known = state.cursors.get((of, name))
            if known is not None and known.hold == hold:
                return None
            plain = {str(p): o for p, o in positions.items()}
            return {"k": "cursor", "topic": of, "name": name, "positions": plain, "hold": hold}

        self._folder.change(change)
        return self._folder.journal.state.cursors[canonical_topic(self._folder.journal.state, topic), name]

    def drop_cursor(self, topic: str, name: str) -> None:
        """See `Log.drop_cursor`."""
        self._folder.change(
            lambda state: {"k": "uncursor", "topic": canonical_topic(state, topic), "name": name}
        )

    def move_cursor(self, move: CursorMove) -> None:
        """See `Log.move_cursor`."""

        def change(state: JournalState) -> dict[str, Any]:
            here = dataclasses.replace(move, topic=canonical_topic(state, move.topic))
            check_moves(state, [here])
            return {"k": "commit", "move": move_json(here)}

        self._folder.change(change)

    def group(self, topic: str, name: str) -> GroupInfo | None:
        """See `Log.group`."""
        self._folder.journal.refresh()
        return self._folder.journal.state.groups.get(
            (canonical_topic(self._folder.journal.state, topic), name)
        )

    def beat(self, topic: str, group: str, member: str, timeout_ms: float) -> GroupInfo:
        """See `Log.beat`. A beat is written to a small file per member, unsynced: beats matter only until the machine
        restarts."""
        topic = canonical_topic(self._folder.journal.state, topic)
        beats = _beats_folder(topic, group)
        self._folder.storage.make_dirs(beats)
        self._write_beat(f"{beats}/{_safe(member)}", timeout_ms)
        self._folder.journal.refresh()
        known = self._folder.journal.state.groups.get((topic, group))
        if known is None or member not in known.members or self._expired(known):
            self._folder.change(lambda state: self._regroup(state, topic, group, joins=member))
        return self._folder.journal.state.groups[topic, group]

    def release(self, topic: str, group: str, member: str, partitions: Sequence[int]) -> GroupInfo:
        """See `Log.release`."""
        topic = canonical_topic(self._folder.journal.state, topic)

        def change(state: JournalState) -> dict[str, Any] | None:
            known = state.groups.get((topic, group))
            if known is None:
                return None
            given = {p for p in partitions if known.owners.get(p) == member and known.wanted.get(p) != member}
            if not given:
                return None
            owners = {p: known.wanted[p] if p in given else o for p, o in known.owners.items()}
            return _group_record(dataclasses.replace(known, owners=owners))

        self._folder.change(change)
        return self._folder.journal.state.groups[topic, group]

    def leave(self, topic: str, group: str, member: str) -> None:
        """See `Log.leave`."""
        topic = canonical_topic(self._folder.journal.state, topic)
        self._folder.change(lambda state: self._regroup(state, topic, group, leaves=member))
        self._folder.storage.remove(f"{_beats_folder(topic, group)}/{_safe(member)}")

    def _regroup(
        self,
        state: JournalState,
        topic: str,
        group: str,
        *,
        joins: str | None = None,
        leaves: str | None = None,
    ) -> dict[str, Any] | None:
        """Return the group's record after a member joined, left or timed out; None if nothing changes."""
        found = topic_of(state, topic)
        known = state.groups.get((topic, group)) or GroupInfo(topic, group, 0, (), {}, {})
        gone = {leaves, *self._expired(known)} - {joins}
        members = tuple(sorted(({*known.members} | ({joins} if joins else set())) - gone - {None}))
        if members == known.members:
            return None
        partitions = range(found.definition.partitions)
        wanted = share_out(found.definition.partitions, members, known.wanted)
        owners = {}
        for partition in partitions:
            owner = known.owners.get(partition)
            if owner not in members:
                owner = wanted.get(partition)
            if owner is not None:
                owners[partition] = owner
        return _group_record(GroupInfo(topic, group, known.generation + 1, members, owners, wanted))

    def _write_beat(self, name: str, timeout_ms: float) -> None:
        with contextlib.closing(self._folder.storage.open(name, create=True)) as file:
            file.write_at(0, b"%024.3f %024.3f" % (self._folder.clock.steady_ms(), timeout_ms))

    def _expired(self, group: GroupInfo) -> set[str]:
        """Return the members whose last beat is older than their timeout."""
        now, expired = self._folder.clock.steady_ms(), set()
        for member in group.members:
            try:
                text = self._folder.storage.read(f"{_beats_folder(group.topic, group.name)}/{_safe(member)}")
                last, timeout = (float(word) for word in text.split())
            except (WorkspaceMissingError, ValueError):
                last, timeout = float("-inf"), 0.0
            if not last <= now or now - last > timeout:  # a beat from the future is from before a restart
                expired.add(member)
        return expired


def _group_record(group: GroupInfo) -> dict[str, Any]:
    plain = dataclasses.asdict(group)
    for side in ("owners", "wanted"):
        plain[side] = {str(p): m for p, m in plain[side].items()}
    return {"k": "group", "group": plain}


def _beats_folder(topic: str, group: str) -> str:
    return f"groups/{topic}/{_safe(group)}"


def _safe(name: str) -> str:
    """Return a name in a form that is valid as a file name."""
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in name)
