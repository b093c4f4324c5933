"""The state replayed from the journal: topics, partitions with their segments, the catalog, producers, cursors and groups.

A checkpoint is a `JournalState` as JSON. `record_kinds` defines how each record changes it.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.catalog.definitions import TopicDefinition
from headwater.log.embedded.journal.commit_ids import CommitIds
from headwater.log.protocol import CursorInfo, Entry, GroupInfo, ProducerWatermark
from headwater.log.repeated_appends import Sums
from headwater.log.topic_names import EntryKey, entry_key
from headwater.log.watermarks import NONE


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
    """Highest event time of the segment's records."""
    index: list[list[int]] = field(default_factory=list)
    closed: bool = False
    compacted: bool = False
    checksums: list[str] = field(default_factory=list)
    """XXH3-64 of a sealed file's footer, then of each of its row groups; of an Arrow segment's schema message."""
    steps: bool = False
    """Whether a sealed file has a `.steps` file: watermarks at offsets without a record."""

    def to_json(self) -> list[Any]:
        """Return the values of the fields in order, without names, because there are many segments."""
        return [getattr(self, f.name) for f in _SEGMENT_FIELDS]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Segment:
        """Return the segment that `to_json` wrote."""
        return cls(*plain)

    def index_at(self, offset: int) -> list[int] | None:
        """Return the last index entry at or before an offset."""
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
    """Time of the last record or declared punctuation, initially of the topic's creation."""

    @property
    def active(self) -> Segment | None:
        """The segment that appends go to, if one is open."""
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.kind == "arrow" and not last.closed else None

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segments with records at or after an offset."""
        return self.segments[bisect.bisect_right(self.segments, offset, key=lambda s: s.end) :]

    def to_json(self) -> dict[str, Any]:
        """Return the partition as plain JSON."""
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
        """Return the partition that `to_json` wrote. `at` is the time of the state, used where an earlier version stored no
        `heard` and there are no segments."""
        segments = [Segment.from_json(s) for s in plain["segments"]]
        heard = plain.get("heard", segments[-1].at1 if segments else at)
        return cls(segments, plain["first"], plain["end"], plain["watermark"], plain["ahead"], heard)


@dataclass
class TopicState:
    """A topic. `id` is never reused, so its folder never contains another topic's files."""

    id: int
    definition: TopicDefinition
    partitions: list[PartitionState]
    watermarks_by_producer: dict[str, ProducerWatermark] = field(default_factory=dict)
    """Watermarks by producer, if the topic takes producer watermarks."""

    @property
    def folder(self) -> str:
        """The folder of the topic's files."""
        return f"topics/{self.definition.name}-{self.id}"


@dataclass
class ProducerState:
    """A producer's epoch, last sequence and kept receipts: sequence -> {topic: {p: [first, end]}}."""

    epoch: int = 0
    last: int = -1
    receipts: OrderedDict[int, dict[str, dict[int, list[int]]]] = field(default_factory=OrderedDict)
    note: dict[str, Any] | None = None
    """Last note of the producer about its progress."""
    sums: dict[int, Sums] = field(default_factory=dict)
    """Sums of the rows of the kept receipts, where known: see `headwater.log.repeated_appends`."""
    tokens: dict[int, str] = field(default_factory=dict)
    """Token of the commit that wrote a sequence, by sequence; missing for commits without an id."""


@dataclass
class JournalState:
    """State of the whole workspace at a journal position."""

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
    """Segments whose latest frames are durable only in the journal."""
    suspect: bool = False
    """Whether a sync has failed since: data read back from these segments may differ from what is on disk."""
    soft: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Segments with frames that no commit required to be synced: the last commit that wrote them, and whether the file was new.
    A commit that requires a sync syncs them too, because the journal is one sequence: it is cut as a whole or not at all."""
    ends: dict[int, int] = field(default_factory=dict)
    """End of each of the latest journals, by which a writer that was suspended during a fence determines whether its commits
    count."""
    commits: CommitIds = field(default_factory=CommitIds)
    """Ids of the commits since the last checkpoint."""

    def topic_by_id(self, number: int) -> TopicState | None:
        """Return a topic by its id; None once dropped."""
        return self.ids.get(number)

    def all_partitions(self) -> Iterator[tuple[TopicState, int, PartitionState]]:
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                yield topic, number, partition

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON that `from_json` reads back."""
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
                for name, p in t.watermarks_by_producer.items()
            ],
            "producers": {
                name: [p.epoch, p.last, list(p.receipts.items()), *([] if p.note is None else [p.note])]
                for name, p in self.producers.items()
            },
            "sums": {name: list(p.sums.items()) for name, p in self.producers.items() if p.sums},
            "receipts": {name: list(p.tokens.items()) for name, p in self.producers.items() if p.tokens},
            "cursors": [dataclasses.asdict(c) for c in self.cursors.values()],
            "groups": [dataclasses.asdict(g) for g in self.groups.values()],
            "entries": [
                [e.kind, e.name, e.document, e.sequence, e.created_at] for e in self.entries.values()
            ],
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any], receipts_max: int = 1_000) -> JournalState:
        """Return the state that `to_json` wrote."""
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
            state.ids[number].watermarks_by_producer[name] = ProducerWatermark(moment, heard_at)
        for name, (epoch, last, receipts, *noted) in plain["producers"].items():
            kept = OrderedDict((s, _receipt(r)) for s, r in receipts)
            sums = dict(plain.get("sums", {}).get(name, ()))
            state.producers[name] = ProducerState(epoch, last, kept, noted[0] if noted else None, sums)
        for name, tokens in plain.get("receipts", {}).items():
            state.producers[name].tokens = dict(tokens)
        state.commits.first = state.seq + 1
        for cursor in plain["cursors"]:
            info = _cursor_from_json(cursor)
            state.cursors[(info.topic, info.name)] = info
        for group in plain["groups"]:
            found = group_from_json(group)
            state.groups[(found.topic, found.name)] = found
        for entry in (Entry(*values) for values in plain.get("entries", ())):
            state.entries[entry_key(entry.kind, entry.name)] = entry
        return state


def _receipt(plain: dict[str, dict[str, list[int]]]) -> dict[str, dict[int, list[int]]]:
    return {topic: {int(p): span for p, span in ranges.items()} for topic, ranges in plain.items()}


def _cursor_from_json(plain: dict[str, Any]) -> CursorInfo:
    positions = {int(p): o for p, o in plain["positions"].items()}
    history = tuple((at, total) for at, total in plain["history"])
    return CursorInfo(**{**plain, "positions": positions, "history": history})


def group_from_json(plain: dict[str, Any]) -> GroupInfo:
    """Return a group from its form in a record or a checkpoint."""
    owners, wanted = ({int(p): m for p, m in plain[k].items()} for k in ("owners", "wanted"))
    return GroupInfo(
        plain["topic"], plain["name"], plain["generation"], tuple(plain["members"]), owners, wanted
    )
