"""The kinds of journal records: how each one changes the state of the workspace.

Pure: the same records in the same order give the same state in every process, so that processes sharing a workspace agree
without communicating. A new kind is a function and a row of `KINDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import NewerVersionError
from headwater.log import producer_watermarks as by_producer
from headwater.log.embedded.journal.journal_file import Record
from headwater.log.embedded.journal.journal_state import (
    JournalState,
    PartitionState,
    ProducerState,
    Segment,
    TopicState,
    group_from_json,
)
from headwater.log.protocol import CursorInfo, Entry, ProducerInfo
from headwater.log.topic_names import EntryKey, entry_key
from headwater.log.watermarks import NONE

INDEX_BYTES = 64 << 10
"""Bytes of an active segment between two entries of its index."""
ENDS = 1_000
"""Number of journals whose end is kept."""
HISTORY = 8
"""Number of commits kept in a cursor's history for the forecast."""


def apply_record(state: JournalState, record: Record) -> None:
    """Apply one record to the state; NewerVersionError if this version does not support its kind."""
    change = KINDS.get(record["k"])
    if change is None:
        raise NewerVersionError(
            f"the journal has a record of kind {record['k']!r}, which this version does not know",
            hint="upgrade Headwater: pip install -U headwater",
            found=record["k"],
        )
    state.seq = record["seq"]
    state.at = max(state.at, record["at"])
    state.commits.add(record["seq"], record.get("tag", ""))
    change(state, record)


def _begin(state: JournalState, record: Record) -> None:
    """Begin a journal. After a fence every active segment is closed, because a fenced writer may still write to it."""
    if "n" in record:
        state.ends[record["n"] - 1] = record["previous_end"]
        for old in sorted(state.ends)[:-ENDS]:
            del state.ends[old]
    state.suspect = state.suspect or bool(record.get("void"))
    if record.get("fence"):
        for _, _, partition in state.all_partitions():
            if (active := partition.active) is not None:
                active.closed = True
    else:
        state.commits.forget(record["seq"])


def _append(state: JournalState, record: Record) -> None:
    for part in record["parts"]:
        _add_part(state, record, part)
    if record.get("producer"):
        _remember(state, record)
    if record.get("said"):
        _say(state, record["said"], record["at"])
    for move in record.get("moves", ()):
        _move(state, move, record["at"])


def _add_part(state: JournalState, record: Record, part: Record) -> None:
    topic = state.topic_by_id(part["t"])
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
        state.unsynced.add(segment.name)
    if not record.get("sync", True) and (part.get("new") or not part.get("i")):
        state.soft[segment.name] = (
            record["seq"],
            bool(part.get("new")) or state.soft.get(segment.name, (0, False))[1],
        )


def _say(state: JournalState, said: Record, at: int) -> None:
    """Apply a producer watermark, or the removal of a producer."""
    topic = state.topic_by_id(said["t"])
    if topic is None or said["what"] == "silence":
        return
    if said["what"] == "promise":
        topic.watermarks_by_producer = by_producer.declared(
            topic.watermarks_by_producer, said["by"], said["moment"], at
        )
    else:
        topic.watermarks_by_producer = by_producer.retired(topic.watermarks_by_producer, said["by"])


def _remember(state: JournalState, record: Record) -> None:
    name, epoch, sequence, *noted = record["producer"]
    producer = state.producers.setdefault(name, ProducerState())
    producer.epoch = max(producer.epoch, epoch)
    producer.last = max(producer.last, sequence)
    producer.note = noted[0] if noted else producer.note
    receipt: dict[str, dict[int, list[int]]] = {}
    for part in record["parts"]:
        topic = state.topic_by_id(part["t"])
        if topic is not None:
            ranges = receipt.setdefault(topic.definition.name, {})
            before = ranges.get(part["p"])
            ranges[part["p"]] = [before[0] if before else part["o"][0], part["o"][1]]
            if topic.definition.watermark == "producers":
                topic.watermarks_by_producer = by_producer.appended(
                    topic.watermarks_by_producer, name, record["at"]
                )
    producer.receipts[sequence] = receipt
    if "sums" in record:
        producer.sums[sequence] = record["sums"]
    if "tag" in record:
        producer.tokens[sequence] = f"{record['seq']}-{record['tag']}"
    while len(producer.receipts) > state.receipts_max:
        gone, _ = producer.receipts.popitem(last=False)
        producer.sums.pop(gone, None)
        producer.tokens.pop(gone, None)


def _epoch(state: JournalState, record: Record) -> None:
    state.producers[record["name"]].epoch = record["epoch"]


def _topic(state: JournalState, record: Record) -> None:
    definition = TopicDefinition.from_json(record["definition"])
    if "drops" in record:
        _drop(state, {"id": record["drops"]})
    known = state.topic_by_id(record["id"])
    if known is not None:
        known.definition = definition
        return
    partitions = [PartitionState(heard=record["at"]) for _ in range(definition.partitions)]
    state.topics[definition.name] = state.ids[record["id"]] = TopicState(record["id"], definition, partitions)
    state.next_id = max(state.next_id, record["id"] + 1)


def _drop(state: JournalState, record: Record) -> None:
    topic = state.topic_by_id(record["id"])
    if topic is None:
        return
    name = topic.definition.name
    del state.topics[name], state.ids[topic.id]
    state.cursors = {k: v for k, v in state.cursors.items() if k[0] != name}
    state.groups = {k: v for k, v in state.groups.items() if k[0] != name}
    _forget(state, (s.name for p in topic.partitions for s in p.segments))


def _entry(state: JournalState, record: Record) -> None:
    """Store or drop a catalog entry."""
    fold_entry(state.entries, record)


def _replace(state: JournalState, record: Record) -> None:
    """Replace the segments named `old` by `new` at the same position: rewritten (sealed, compacted) or removed ones."""
    topic = state.topic_by_id(record["t"])
    if topic is None:
        return
    partition = topic.partitions[record["p"]]
    old = set(record["old"])
    place = next((i for i, s in enumerate(partition.segments) if s.name in old), len(partition.segments))
    new = [Segment.from_json(s) for s in record["new"]]
    kept = [s for s in partition.segments if s.name not in old]
    partition.segments = kept[:place] + new + kept[place:]
    partition.first = max(partition.first, record.get("first", 0))
    _forget(state, old)


def _forget(state: JournalState, names: Iterable[str]) -> None:
    for name in names:
        state.unsynced.discard(name)
        state.soft.pop(name, None)


def _close(state: JournalState, record: Record) -> None:
    """Close active segments, so that they can be sealed. For an excision, also remove the topic's row sums: the sum of few rows
    could be used to guess their values."""
    if "excises" in record:
        for producer in state.producers.values():
            sums = producer.sums.items()
            producer.sums = {s: one for s, one in sums if str(record["excises"]) not in one}
    for number, place in record["parts"]:
        topic = state.topic_by_id(number)
        if topic is not None and (active := topic.partitions[place].active) is not None:
            active.closed = True


def _cursor(state: JournalState, record: Record) -> None:
    key = (record["topic"], record["name"])
    positions = {int(p): o for p, o in record["positions"].items()}
    known = state.cursors.get(key)
    if known is not None:
        state.cursors[key] = dataclasses.replace(known, hold=record["hold"])
    else:
        state.cursors[key] = CursorInfo(*key, positions, record["hold"], 0, None)


def _uncursor(state: JournalState, record: Record) -> None:
    state.cursors.pop((record["topic"], record["name"]), None)
    state.groups.pop((record["topic"], record["name"]), None)


def _commit(state: JournalState, record: Record) -> None:
    _move(state, record["move"], record["at"])


def _move(state: JournalState, move: Record, at: int) -> None:
    key = (move["topic"], move["cursor"])
    known = state.cursors.get(key)
    if known is None:
        known = CursorInfo(*key, {}, False, 0, None)
    positions = {**known.positions, **{int(p): o for p, o in move["positions"].items()}}
    history = (*known.history, (at, sum(positions.values())))[-HISTORY:]
    state.cursors[key] = dataclasses.replace(
        known,
        positions=positions,
        committed_at=at,
        lost=known.lost + move.get("lost", 0),
        history=history,
    )


def _group(state: JournalState, record: Record) -> None:
    plain = record["group"]
    info = group_from_json(plain)
    state.groups[(info.topic, info.name)] = info


def fold_entry(entries: dict[EntryKey, Entry], record: Record) -> bool:
    """Apply a record to the entries of the catalog; return whether it concerns one."""
    if record["k"] == "entry":
        kind, name = record["kind"], record["name"]
        entries[entry_key(kind, name)] = Entry(kind, name, record["document"], record["seq"], record["at"])
    elif record["k"] == "unentry":
        entries.pop(entry_key(record["kind"], record["name"]), None)
    else:
        return False
    return True


def fold_producer(producers: dict[str, ProducerInfo], record: Record) -> None:
    """Apply a record to the producers, if it concerns one."""
    if record["k"] == "epoch":
        known = producers[record["name"]]
        producers[record["name"]] = dataclasses.replace(known, epoch=record["epoch"])
    elif record.get("producer"):
        name, epoch, sequence, *noted = record["producer"]
        last = producers.get(name, ProducerInfo(-1, 0, None))
        note = noted[0] if noted else last.note
        producers[name] = ProducerInfo(max(last.sequence, sequence), max(last.epoch, epoch), note)


KINDS: Mapping[str, Callable[[JournalState, Record], None]] = {
    "append": _append,
    "begin": _begin,
    "close": _close,
    "commit": _commit,
    "cursor": _cursor,
    "drop": _drop,
    "entry": _entry,
    "epoch": _epoch,
    "group": _group,
    "replace": _replace,
    "topic": _topic,
    "uncursor": _uncursor,
    "unentry": _entry,
}
"""Change of the state by each kind of record, by the name of the kind in the journal."""
TOPIC_KINDS = frozenset({"drop", "topic"})
"""Kinds of records that change the definitions of topics."""
