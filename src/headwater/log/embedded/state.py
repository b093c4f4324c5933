"""What the journal adds up to: topics, partitions with their segments, the catalog, producers, cursors and groups.

Pure. `State.apply` folds one record in; a checkpoint is a State as JSON. Fold of the same records gives the same state
in every process, which is how processes that share a workspace agree without talking.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.catalog import TopicDefinition
from headwater.log import promises
from headwater.log.embedded.journal import Record
from headwater.log.names import EntryKey, entry_key
from headwater.log.protocol import CursorInfo, Entry, GroupInfo, ProducerInfo, Promise
from headwater.log.watermarks import NONE

INDEX_BYTES = 64 << 10
"""An active segment's index has an entry about every so many bytes."""
ENDS = 1_000
"""Journals whose end is remembered."""
HISTORY = 8
"""Commits of a cursor that are remembered for the forecast."""


@dataclass
class Segment:
    """A file of records, [first, end). `index` (Arrow segments) is [[offset, byte, seq, at, w0], ...], sparse."""

    name: str
    kind: Literal["arrow", "parquet"]
    first: int
    end: int
    rows: int
    size: int
    schema_version: int
    seq0: int
    seq1: int
    at0: int
    at1: int
    w0: int
    w1: int
    tmax: int
    """The highest event time in it."""
    index: list[list[int]] = field(default_factory=list)
    closed: bool = False
    compacted: bool = False
    checksums: list[str] = field(default_factory=list)
    """XXH3-64 of a sealed file's footer, then of each of its row groups; of an Arrow segment's schema message."""
    steps: bool = False
    """Whether a sealed file has a `.steps` file beside it: watermarks at offsets that no record is left at."""

    def to_json(self) -> list[Any]:
        """A plain form; the fields in order, because there are many segments."""
        return [getattr(self, f.name) for f in _SEGMENT_FIELDS]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Segment:
        """The segment that `to_json` wrote."""
        return cls(*plain)

    def index_at(self, offset: int) -> list[int] | None:
        """The last index entry at or before an offset."""
        place = bisect.bisect_right(self.index, offset, key=lambda e: e[0])
        return self.index[place - 1] if place else None


_SEGMENT_FIELDS = dataclasses.fields(Segment)


@dataclass
class PartitionState:
    """A partition: its segments in order, the last of which may be active."""

    segments: list[Segment] = field(default_factory=list)
    first: int = 0
    end: int = 0
    watermark: int = NONE
    ahead: int = 0
    heard: int = 0
    """The time of the last record or declared punctuation, at first of the topic's creation."""

    @property
    def active(self) -> Segment | None:
        """The segment that appends go to, if one is open."""
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.kind == "arrow" and not last.closed else None

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments with records at or after an offset."""
        return self.segments[bisect.bisect_right(self.segments, offset, key=lambda s: s.end) :]

    def to_json(self) -> dict[str, Any]:
        """A plain form."""
        return {
            "segments": [s.to_json() for s in self.segments],
            "first": self.first,
            "end": self.end,
            "watermark": self.watermark,
            "ahead": self.ahead,
            "heard": self.heard,
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any], at: int) -> PartitionState:
        """The partition that `to_json` wrote; `at` is the time of the state. Earlier versions did not say when it was
        heard of last."""
        segments = [Segment.from_json(s) for s in plain["segments"]]
        heard = plain.get("heard", segments[-1].at1 if segments else at)
        return cls(segments, plain["first"], plain["end"], plain["watermark"], plain["ahead"], heard)


@dataclass
class TopicState:
    """A topic. `id` is never used again, so its folder never holds another topic's files."""

    id: int
    definition: TopicDefinition
    partitions: list[PartitionState]
    promises: dict[str, Promise] = field(default_factory=dict)
    """Its producers, where they promise."""

    @property
    def folder(self) -> str:
        """Where its files are."""
        return f"topics/{self.definition.name}-{self.id}"


@dataclass
class ProducerState:
    """A producer's epoch, its last sequence and the receipts that are kept: sequence -> {topic: {p: [first, end]}}."""

    epoch: int = 0
    last: int = -1
    receipts: OrderedDict[int, dict[str, dict[int, list[int]]]] = field(default_factory=OrderedDict)
    note: dict[str, Any] | None = None
    """What it said last of where it stands."""


@dataclass
class State:
    """The whole workspace at a journal position."""

    receipts_max: int = 1_000
    seq: int = 0
    at: int = 0
    next_id: int = 1
    topics: dict[str, TopicState] = field(default_factory=dict)
    producers: dict[str, ProducerState] = field(default_factory=dict)
    cursors: dict[tuple[str, str], CursorInfo] = field(default_factory=dict)
    groups: dict[tuple[str, str], GroupInfo] = field(default_factory=dict)
    entries: dict[EntryKey, Entry] = field(default_factory=dict)
    ids: dict[int, TopicState] = field(default_factory=dict)
    unsynced: set[str] = field(default_factory=set)
    """Segments whose latest frames only the journal holds durably."""
    soft: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Segments with frames that nobody asked to sync: the commit that wrote them last, and whether the file was new.
    A commit that does ask syncs them too, because the journal is one sequence: it is cut as a whole or not at all."""
    ends: dict[int, int] = field(default_factory=dict)
    """Where each of the latest journals ended: what a writer that slept through a fence is judged by."""

    def topic_by_id(self, number: int) -> TopicState | None:
        """A topic by its id; None once dropped."""
        return self.ids.get(number)

    def apply(self, record: Record) -> None:
        """Fold one record in. Unknown kinds are a newer version's and are refused by the caller before this."""
        self.seq = record["seq"]
        self.at = max(self.at, record["at"])
        getattr(self, f"_{record['k']}")(record)

    # --- one method per kind of record -------------------------------------------------------------------------

    def _begin(self, record: Record) -> None:
        """A journal starts. After a fence nothing may be added to the segments that a lost writer could still touch."""
        if "n" in record:
            self.ends[record["n"] - 1] = record["previous_end"]
            for old in sorted(self.ends)[:-ENDS]:
                del self.ends[old]
        if record.get("fence"):
            for _, _, partition in self._all_partitions():
                if (active := partition.active) is not None:
                    active.closed = True

    def _append(self, record: Record) -> None:
        for part in record["parts"]:
            self._add_part(record, part)
        if record.get("producer"):
            self._remember(record)
        if record.get("said"):
            self._say(record["said"], record["at"])
        for move in record.get("moves", ()):
            self._move(move, record["at"])

    def _add_part(self, record: Record, part: Record) -> None:
        topic = self.topic_by_id(part["t"])
        if topic is None:
            return
        partition = topic.partitions[part["p"]]
        segment = partition.active
        (start, stop), (first, end), (w0, w1) = part["b"], part["o"], part["w"]
        if segment is None or segment.name != part["s"]:
            if segment is not None:
                segment.closed = True
            segment = Segment(
                name=part["s"],
                kind="arrow",
                first=first,
                end=first,
                rows=0,
                size=start,
                schema_version=topic.definition.schema_version,
                seq0=record["seq"],
                seq1=record["seq"],
                at0=record["at"],
                at1=record["at"],
                w0=w0,
                w1=w0,
                tmax=NONE,
                closed=bool(part.get("closed")),
                checksums=[part["x"]] if "x" in part else [],
            )
            partition.segments.append(segment)
        if not segment.index or start - segment.index[-1][1] >= INDEX_BYTES:
            segment.index.append([first, start, record["seq"], record["at"], w0])
        segment.end, segment.size, segment.seq1, segment.at1, segment.w1 = (
            end,
            stop,
            record["seq"],
            record["at"],
            w1,
        )
        segment.rows += part["r"]
        segment.tmax = max(segment.tmax, part["m"])
        partition.end, partition.watermark = end, w1
        partition.ahead += part.get("a", 0)
        if record.get("said", {}).get("what") != "silence":
            partition.heard = record["at"]
        if part.get("i"):
            self.unsynced.add(segment.name)
        if not record.get("sync", True) and (part.get("new") or not part.get("i")):
            self.soft[segment.name] = (
                record["seq"],
                bool(part.get("new")) or self.soft.get(segment.name, (0, False))[1],
            )

    def _say(self, said: Record, at: int) -> None:
        """A producer of a topic promises, or is one no longer."""
        topic = self.topic_by_id(said["t"])
        if topic is None or said["what"] == "silence":
            return
        if said["what"] == "promise":
            topic.promises = promises.promised(topic.promises, said["by"], said["moment"], at)
        else:
            topic.promises = promises.retired(topic.promises, said["by"])

    def _remember(self, record: Record) -> None:
        name, epoch, sequence, *noted = record["producer"]
        producer = self.producers.setdefault(name, ProducerState())
        producer.epoch = max(producer.epoch, epoch)
        producer.last = max(producer.last, sequence)
        producer.note = noted[0] if noted else producer.note
        receipt: dict[str, dict[int, list[int]]] = {}
        for part in record["parts"]:
            topic = self.topic_by_id(part["t"])
            if topic is not None:
                ranges = receipt.setdefault(topic.definition.name, {})
                before = ranges.get(part["p"])
                ranges[part["p"]] = [before[0] if before else part["o"][0], part["o"][1]]
                if topic.definition.watermark == "producers":
                    topic.promises = promises.appended(topic.promises, name, record["at"])
        producer.receipts[sequence] = receipt
        while len(producer.receipts) > self.receipts_max:
            producer.receipts.popitem(last=False)

    def _epoch(self, record: Record) -> None:
        self.producers[record["name"]].epoch = record["epoch"]

    def _topic(self, record: Record) -> None:
        definition = TopicDefinition.from_json(record["definition"])
        if "drops" in record:
            self._drop({"id": record["drops"]})
        known = self.topic_by_id(record["id"])
        if known is not None:
            known.definition = definition
            return
        partitions = [PartitionState(heard=record["at"]) for _ in range(definition.partitions)]
        self.topics[definition.name] = self.ids[record["id"]] = TopicState(
            record["id"], definition, partitions
        )
        self.next_id = max(self.next_id, record["id"] + 1)

    def _drop(self, record: Record) -> None:
        topic = self.topic_by_id(record["id"])
        if topic is None:
            return
        name = topic.definition.name
        del self.topics[name], self.ids[topic.id]
        self.cursors = {k: v for k, v in self.cursors.items() if k[0] != name}
        self.groups = {k: v for k, v in self.groups.items() if k[0] != name}
        self._forget(s.name for p in topic.partitions for s in p.segments)

    def _entry(self, record: Record) -> None:
        fold_entry(self.entries, record)

    def _unentry(self, record: Record) -> None:
        fold_entry(self.entries, record)

    def _replace(self, record: Record) -> None:
        """Segments rewritten (sealed, compacted) or removed: those named `old` give way to `new`, in their place."""
        topic = self.topic_by_id(record["t"])
        if topic is None:
            return
        partition = topic.partitions[record["p"]]
        old = set(record["old"])
        place = next((i for i, s in enumerate(partition.segments) if s.name in old), len(partition.segments))
        new = [Segment.from_json(s) for s in record["new"]]
        kept = [s for s in partition.segments if s.name not in old]
        partition.segments = kept[:place] + new + kept[place:]
        partition.first = max(partition.first, record.get("first", 0))
        self._forget(old)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.unsynced.discard(name)
            self.soft.pop(name, None)

    def _close(self, record: Record) -> None:
        """Active segments that take no more appends, so that they can be sealed."""
        for number, place in record["parts"]:
            topic = self.topic_by_id(number)
            if topic is not None and (active := topic.partitions[place].active) is not None:
                active.closed = True

    def _cursor(self, record: Record) -> None:
        key = (record["topic"], record["name"])
        positions = {int(p): o for p, o in record["positions"].items()}
        known = self.cursors.get(key)
        if known is not None:
            self.cursors[key] = dataclasses.replace(known, hold=record["hold"])
        else:
            self.cursors[key] = CursorInfo(*key, positions, record["hold"], 0, None)

    def _uncursor(self, record: Record) -> None:
        self.cursors.pop((record["topic"], record["name"]), None)
        self.groups.pop((record["topic"], record["name"]), None)

    def _commit(self, record: Record) -> None:
        self._move(record["move"], record["at"])

    def _move(self, move: Record, at: int) -> None:
        key = (move["topic"], move["cursor"])
        known = self.cursors.get(key)
        if known is None:
            known = CursorInfo(*key, {}, False, 0, None)
        positions = {**known.positions, **{int(p): o for p, o in move["positions"].items()}}
        history = (*known.history, (at, sum(positions.values())))[-HISTORY:]
        self.cursors[key] = dataclasses.replace(
            known,
            positions=positions,
            committed_at=at,
            lost=known.lost + move.get("lost", 0),
            history=history,
        )

    def _group(self, record: Record) -> None:
        plain = record["group"]
        info = group_from_json(plain)
        self.groups[(info.topic, info.name)] = info

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _all_partitions(self) -> Iterator[tuple[TopicState, int, PartitionState]]:
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    def to_json(self) -> dict[str, Any]:
        """A plain form that `from_json` reads back."""
        return {
            "seq": self.seq,
            "at": self.at,
            "next_id": self.next_id,
            "ends": list(self.ends.items()),
            "topics": [
                [t.id, t.definition.to_json(), [p.to_json() for p in t.partitions]]
                for t in self.topics.values()
            ],
            "promises": [
                [t.id, name, p.moment, p.heard_at]
                for t in self.topics.values()
                for name, p in t.promises.items()
            ],
            "producers": {
                name: [p.epoch, p.last, list(p.receipts.items()), *([] if p.note is None else [p.note])]
                for name, p in self.producers.items()
            },
            "cursors": [dataclasses.asdict(c) for c in self.cursors.values()],
            "groups": [dataclasses.asdict(g) for g in self.groups.values()],
            "entries": [
                [e.kind, e.name, e.document, e.sequence, e.created_at] for e in self.entries.values()
            ],
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any], receipts_max: int = 1_000) -> State:
        """The state that `to_json` wrote."""
        state = cls(receipts_max=receipts_max, seq=plain["seq"], at=plain["at"], next_id=plain["next_id"])
        state.ends = dict(plain.get("ends", ()))
        for number, definition, partitions in plain["topics"]:
            topic = TopicState(
                number,
                TopicDefinition.from_json(definition),
                [PartitionState.from_json(p, state.at) for p in partitions],
            )
            state.topics[topic.definition.name] = state.ids[number] = topic
        for number, name, moment, heard_at in plain.get("promises", ()):
            state.ids[number].promises[name] = Promise(moment, heard_at)
        for name, (epoch, last, receipts, *noted) in plain["producers"].items():
            kept = OrderedDict((s, _receipt(r)) for s, r in receipts)
            state.producers[name] = ProducerState(epoch, last, kept, noted[0] if noted else None)
        for cursor in plain["cursors"]:
            info = _cursor_from_json(cursor)
            state.cursors[(info.topic, info.name)] = info
        for group in plain["groups"]:
            found = group_from_json(group)
            state.groups[(found.topic, found.name)] = found
        for entry in (Entry(*values) for values in plain.get("entries", ())):
            state.entries[entry_key(entry.kind, entry.name)] = entry
        return state


def fold_entry(entries: dict[EntryKey, Entry], record: Record) -> None:
    """Fold a record into the entries of the catalog, if it is about one."""
    if record["k"] == "entry":
        kind, name = record["kind"], record["name"]
        entries[entry_key(kind, name)] = Entry(kind, name, record["document"], record["seq"], record["at"])
    elif record["k"] == "unentry":
        entries.pop(entry_key(record["kind"], record["name"]), None)


def fold_producer(producers: dict[str, ProducerInfo], record: Record) -> None:
    """Fold a record into what is known of producers, if one made it."""
    if record["k"] == "epoch":
        known = producers[record["name"]]
        producers[record["name"]] = dataclasses.replace(known, epoch=record["epoch"])
    elif record.get("producer"):
        name, epoch, sequence, *noted = record["producer"]
        last = producers.get(name, ProducerInfo(-1, 0, None))
        note = noted[0] if noted else last.note
        producers[name] = ProducerInfo(max(last.sequence, sequence), max(last.epoch, epoch), note)


def _receipt(plain: dict[str, dict[str, list[int]]]) -> dict[str, dict[int, list[int]]]:
    return {topic: {int(p): span for p, span in ranges.items()} for topic, ranges in plain.items()}


def _cursor_from_json(plain: dict[str, Any]) -> CursorInfo:
    positions = {int(p): o for p, o in plain["positions"].items()}
    history = tuple((at, total) for at, total in plain["history"])
    return CursorInfo(**{**plain, "positions": positions, "history": history})


def group_from_json(plain: dict[str, Any]) -> GroupInfo:
    """A group as a record or a checkpoint has it."""
    owners, wanted = ({int(p): m for p, m in plain[k].items()} for k in ("owners", "wanted"))
    return GroupInfo(
        plain["topic"], plain["name"], plain["generation"], tuple(plain["members"]), owners, wanted
    )
