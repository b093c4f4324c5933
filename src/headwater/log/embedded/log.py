"""The embedded log: durable topics in a folder, shared by any number of processes of one machine.

Puts together the journal (core), segments, appends, staging and maintenance behind the Log protocol.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.catalog import TopicDefinition
from headwater.clock import Clock, SystemClock
from headwater.errors import ConflictError, HeadwaterError
from headwater.keys import FileKeys, Wrapping
from headwater.log.backlog import patiently
from headwater.log.embedded.append import Appender
from headwater.log.embedded.consumers import ConsumerSide
from headwater.log.embedded.creation import WORKSPACE_FILE, create_workspace, read_about
from headwater.log.embedded.declaring import DeclaringSide
from headwater.log.embedded.devices import DeviceClocks
from headwater.log.embedded.excision import Excision
from headwater.log.embedded.maintenance import Maintenance
from headwater.log.embedded.part import spelled, topic_of
from headwater.log.embedded.reading import ReadSide
from headwater.log.embedded.staging import EmbeddedStage
from headwater.log.embedded.state import State, TopicState
from headwater.log.embedded.verification import verify
from headwater.log.embedded.versions import Versions
from headwater.log.names import (
    check_drop,
    check_entry,
    check_excision,
    check_topic_name,
    plain_document,
)
from headwater.log.protocol import Append, Capability, Entry, Finding, MaintenanceReport, ProducerInfo
from headwater.masters import KMS_VARIABLE, NamedService
from headwater.positions import Receipt
from headwater.settings import LogSettings
from headwater.spelling import Named
from headwater.storage import Storage

KEYS_VARIABLE = "HEADWATER_KEYS"
"""In the environment: the folder with the keys to private columns, where it is not beside the workspace."""

_OPEN: weakref.WeakSet[EmbeddedLog] = weakref.WeakSet()


def _after_fork() -> None:
    for log in list(_OPEN):
        log.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class EmbeddedLog(ReadSide, ConsumerSide, DeclaringSide):
    """See `headwater.log.protocol.Log`. Open one with `EmbeddedLog.open`."""

    capabilities = frozenset(Capability)
    keys: FileKeys

    def __init__(self, storage: Storage, settings: LogSettings, clock: Clock, keys: FileKeys) -> None:
        super().__init__(storage, settings, clock, keys)
        versions, clocks = Versions(self._read_columns), DeviceClocks(self._read_columns)
        self._appender = Appender(self.core, versions, clocks, keys)
        self._maintenance = Maintenance(self.core, self.reader, clock)
        self._excision = Excision(self.core, self._maintenance)
        _OPEN.add(self)

    # --- opening and closing -----------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        create: bool = True,
        storage: Storage | None = None,
        keys: str | Path | None = None,
        kms: Wrapping | None = None,
    ) -> EmbeddedLog:
        """The log in a folder; made if it is missing and `create`. Settings given here win over the stored ones.

        `keys` is the folder with the keys to private columns: beside the workspace if it is not said, here or in
        HEADWATER_KEYS. `kms` wraps their master; HEADWATER_KMS may name it.
        """
        storage = storage or Storage(path)
        if not storage.exists(WORKSPACE_FILE):
            create_workspace(storage, settings or LogSettings(), create)
        about = read_about(storage)
        if settings is None:
            settings = LogSettings(durability=about.get("durability", "fsync"))
        clock = clock or SystemClock()
        folder = Path(keys or os.environ.get(KEYS_VARIABLE) or f"{storage.root.absolute()}.keys")
        # A folder may hold the keys of several workspaces: one that takes another's place has nothing of it.
        if kms is None and (named := os.environ.get(KMS_VARIABLE)):
            kms = NamedService(named)
        kept = FileKeys(Storage(folder / str(about["id"]), secret=True), clock, kms)
        return cls(storage, settings, clock, kept)

    @property
    def identity(self) -> str:
        """See `Log.identity`."""
        return str(read_about(self.storage)["id"])

    @property
    def findings(self) -> list[str]:
        """What recovery cut, restored or skipped since this log was opened."""
        return self.core.findings

    def close(self) -> None:
        """Release every handle."""
        _OPEN.discard(self)
        self._maintenance.stop()
        self._notifier.close()
        self.core.close()
        self.reader.close()
        self.keys.close()

    def abandon(self) -> None:
        """Let go of everything as a killed process would: no orderly work at all."""
        _OPEN.discard(self)
        self._maintenance.stop(wait=False)
        self._notifier.close()
        self.core.close()
        self.reader.close()
        self.keys.close()

    def after_fork(self) -> None:
        """In a forked child: begin anew, with handles, locks and threads of its own. Those of the parent are let go of
        without a word, because a lock that both hold would keep neither out."""
        self.core.disown()
        self.reader.disown()
        upkeep = self._maintenance.started
        with contextlib.suppress(HeadwaterError):  # the workspace is gone: whoever uses this log hears of it
            self.__init__(self.storage, self.settings, self.clock, self.keys.again())  # type: ignore[misc]
            if upkeep:
                self.start_upkeep()

    # --- topics --------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicDefinition]:
        """See `Log.topics`."""
        self.core.refresh()
        return Named({name: topic.definition for name, topic in sorted(self.core.state.topics.items())})

    def topic(self, name: str) -> TopicDefinition:
        """See `Log.topic`."""
        self.core.refresh()
        return topic_of(self.core.state, name).definition

    def create_topic(self, definition: TopicDefinition) -> None:
        """See `Log.create_topic`."""

        def change(state: State) -> dict[str, Any]:
            check_topic_name(definition.name, state.topics, state.entries)
            self._make_folder(definition.name, state.next_id)
            return _topic_record(state.next_id, definition)

        self._change(change)

    def alter_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See `Log.alter_topic`."""

        def change(state: State) -> dict[str, Any]:
            topic = topic_of(state, old.name)
            if topic.definition != old:
                raise ConflictError(
                    f"topic {old.name!r} was altered by someone else",
                    hint="look at it again, then alter it",
                    topic=old.name,
                    expected=old,
                    actual=topic.definition,
                )
            return _topic_record(topic.id, new)

        self._change(change)

    def replace_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See `Log.replace_topic`."""
        replaced: list[TopicState] = []

        def change(state: State) -> dict[str, Any]:
            topic = topic_of(state, old.name)
            read = any(name == topic.definition.name for name, _ in state.cursors)
            if topic.definition != old or read or any(p.end for p in topic.partitions):
                raise ConflictError(
                    f"topic {old.name!r} was altered, written to or read by someone else",
                    hint="look at it again; only a topic without records is replaced",
                    topic=old.name,
                    expected=old,
                    actual=topic.definition,
                )
            replaced[:] = [topic]
            self._make_folder(new.name, state.next_id)
            return {**_topic_record(state.next_id, new), "drops": topic.id}

        self._change(change)
        self._remove(replaced[0])

    def drop_topic(self, name: str) -> None:
        """See `Log.drop_topic`."""
        dropped: list[TopicState] = []

        def change(state: State) -> dict[str, Any]:
            dropped[:] = [topic_of(state, name)]
            return {"k": "drop", "id": dropped[0].id}

        self._change(change)
        self._remove(dropped[0])

    def _make_folder(self, name: str, number: int) -> None:
        folder = f"topics/{name}-{number}"
        self.storage.make_dirs(folder)
        self.core.writable(f"{folder}/wake", 0)

    def _remove(self, topic: TopicState) -> None:
        """Delete the files of a topic that is no longer there."""
        names = [s.name for p in topic.partitions for s in p.segments]
        self.reader.forget(names)
        self.core.release([*names, f"{topic.folder}/wake"])
        self.storage.remove_dir(topic.folder)

    # --- the catalog -------------------------------------------------------------------------------------------------

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """See `Log.entries`."""
        with self.core.mutex:
            self.core.refresh()
            found = [e for e in self.core.visible_entries.values() if e.kind == kind]
        return Named({e.name: e for e in sorted(found, key=lambda e: e.name)})

    def put_entry(self, kind: str, name: str, document: Mapping[str, Any], *, expect: int | None) -> Entry:
        """See `Log.put_entry`."""
        plain = plain_document(kind, name, document)

        def change(state: State) -> dict[str, Any]:
            check_entry((kind, name), state.topics, state.entries, expect)
            return {"k": "entry", "kind": kind, "name": name, "document": plain}

        record = self._change(change) or {}
        return Entry(kind, name, plain, record["seq"], record["at"])

    def drop_entry(self, kind: str, name: str, *, expect: int | None = None) -> None:
        """See `Log.drop_entry`."""

        def change(state: State) -> dict[str, Any]:
            check_drop((kind, name), state.entries, expect)
            return {"k": "unentry", "kind": kind, "name": name}

        self._change(change)

    # --- appending -------------------------------------------------------------------------------------------------------

    def append(self, append: Append) -> Receipt:
        """See `Log.append`."""
        return patiently(self, self.clock, lambda: self._appender.append(append))

    def producer(self, name: str) -> ProducerInfo | None:
        """See `Log.producer`."""
        with self.core.mutex:
            self.core.refresh()
            return self.core.visible_producers.get(name)

    def settle(self) -> None:
        """See `Log.settle`."""
        self.core.settle()

    def stage(self) -> EmbeddedStage:
        """See `Log.stage`."""
        return EmbeddedStage(self.core, self._appender, lambda commit: patiently(self, self.clock, commit))

    # --- upkeep ------------------------------------------------------------------------------------------------------

    def maintain(self, *, force: bool = False, override_holds: bool = False) -> MaintenanceReport:
        """See `Log.maintain`."""
        return self._maintenance.run(force=force, override_holds=override_holds)

    def excise(self, topic: str, offsets: Mapping[int, Sequence[int]]) -> int:
        """See `Log.excise`."""
        self.core.refresh()
        found = topic_of(self.core.state, topic)
        check_excision(found.definition)
        return self._excision.run(found, offsets)

    def start_upkeep(self) -> None:
        """Seal, retain and compact by itself from now on, in a thread, until the log is closed."""
        self._maintenance.start()

    def verify(self, topics: Sequence[str] | None = None) -> Iterator[Finding | int]:
        """See `Log.verify`."""
        self.core.refresh()
        names = None if topics is None else [spelled(self.core.state, name) for name in topics]
        return verify(self.core, self.reader, names)


def _topic_record(number: int, definition: TopicDefinition) -> dict[str, Any]:
    marked = dataclasses.replace(definition, incarnation=number)
    return {"k": "topic", "id": number, "definition": marked.to_json()}
