"""Dead letters of sources: lines of files that a source with `on_error = 'divert'` rejected, from its topic
`<source>_errors`.

A replay parses the line again, as edited, in the format of the source, and appends the row to the source's topic, in one
append with the record of the action. A replayed line stays on the topic of errors, as a record of the rejection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headwater.catalog.connectors import SourceDefinition
from headwater.catalog.definitions import TopicDefinition
from headwater.connectors.dead_letter_store.letter_store import (
    Edited,
    Letter,
    LetterState,
    NewestLetters,
    Note,
    as_json,
    packed,
    unpacked,
)
from headwater.core.errors import ConflictError, GapError, HeadwaterError, UsageError
from headwater.core.hashing import identities
from headwater.log.protocol import Log
from headwater.operators.zset.delta import concat_rows
from headwater.sources.clock_positions import captured
from headwater.sources.files.options import FilesOptions, is_errors_topic, read_options
from headwater.sources.files.reread_line import REPLACED, header_of, row_of
from headwater.views.dead_letter_actions import LetterAction, LetterActions, read_actions, write_actions

LINE = "line"
TOGETHER_MAX = 1_000
"""Maximum number of letters that are replayed in one append."""
ATTEMPTS_MAX = 100
"""Number of attempts to append while another writer appends to the same partition."""
NEAR = 64
"""Maximum distance of records that are read together."""
_COLUMNS = [
    "file",
    "byte",
    LINE,
    "reason",
    "header",
    "_offset",
    "_appended_at",
    "_source_position",
    "_source_time",
]


@dataclass(frozen=True)
class _Line:
    """A rejected line, from the topic of errors."""

    partition: int
    offset: int
    file: str
    byte: int | None
    line: str | None
    header: str | None
    reason: str
    at: int
    position: int
    time: int


@dataclass(frozen=True)
class _ReparsedLine:
    """A letter whose line was parsed again, and the rejected line."""

    known: LetterState
    line: _Line
    row: pa.RecordBatch


class SourceLetterStore:
    """The dead-letter store of file sources."""

    kind: ClassVar[str] = "source"
    keeps_replayed: ClassVar[bool] = True

    def __init__(self, log: Log, definitions: Callable[[], Mapping[str, SourceDefinition]]) -> None:
        self._log = log
        self._definitions = definitions

    def owners(self) -> list[str]:
        """Return the sources with a topic of errors, including those no longer declared."""
        return sorted(self._topics())

    def _topics(self) -> dict[str, TopicDefinition]:
        """Return the topics of rejected lines, by source."""
        topics = self._log.topics().values()
        return {t.captured_by: t for t in topics if t.captured_by is not None and is_errors_topic(t)}

    def letters(self, owner: str, letter: str | None = None) -> list[Letter]:
        """Return the lines in the topic of errors."""
        topic = self._topics()[owner]
        if letter is not None:
            place = _place(letter, topic)
            spans = [] if place is None else [(place[0], place[1], place[1] + 1)]
        else:
            infos = self._log.partitions(topic.name).items()
            spans = [(partition, info.first, info.end) for partition, info in infos]
        return [self._letter(owner, topic, line) for span in spans for line in self._lines(topic, *span)]

    def newest(self, owner: str, count: int, actions: LetterActions) -> NewestLetters:
        """Return the newest lines. Apart from a few records in between, only the returned records are read."""
        topic = self._topics()[owner]
        acted, found, rest = self._acted(owner, topic, actions), dict[tuple[int, int], _Line](), 0
        for partition, info in self._log.partitions(topic.name).items():
            mine = {offset for at, offset in acted if at == partition and info.first <= offset < info.end}
            for span in _spans(sorted(mine)):
                near = self._lines(topic, partition, *span)
                found |= {(partition, line.offset): line for line in near if line.offset in mine}
            others, end = list[_Line](), info.end
            while len(others) < count and end > info.first:
                begin = max(info.first, end - max(count - len(others), NEAR))
                some = [one for one in self._lines(topic, partition, begin, end) if one.offset not in mine]
                others, end = some + others, begin
            others = others[len(others) - min(count, len(others)) :]
            found |= {(partition, line.offset): line for line in others}
            rest += info.rows - len(others)
        rest -= sum(place in found for place in acted)
        return NewestLetters([self._letter(owner, topic, line) for line in found.values()], max(0, rest))

    def count_open(self, owner: str, actions: LetterActions) -> int:
        """Return the number of lines that wait for an action, without reading them."""
        topic = self._topics()[owner]
        infos = self._log.partitions(topic.name)
        settled = sum(
            partition in infos and infos[partition].first <= offset < infos[partition].end
            for (partition, offset), last in self._acted(owner, topic, actions).items()
            if last.action == "drop" or (last.action == "replay" and last.settled)
        )
        return sum(info.rows for info in infos.values()) - settled

    def _acted(
        self, owner: str, topic: TopicDefinition, actions: LetterActions
    ) -> dict[tuple[int, int], LetterAction]:
        """Return the last action on each letter, by position in the topic of errors."""
        found = {}
        for name, done in actions.letters():
            place = _place(name, topic) if done[-1].owner == owner and done[-1].kind == self.kind else None
            if place is not None and done[-1].incarnation == topic.incarnation:
                found[place] = done[-1]
        return found

    def _lines(self, topic: TopicDefinition, partition: int, begin: int, end: int) -> Iterator[_Line]:
        info = self._log.partitions(topic.name).get(partition)
        begin, end = (end, end) if info is None else (max(begin, info.first), min(end, info.end))
        if begin >= end:
            return
        columns = [name for name in _COLUMNS if name != "header" or name in topic.schema.names]
        for batch in self._log.read(topic.name, partition, begin, end, columns):
            times = (batch.column(n).cast(pa.int64()).to_pylist() for n in ("_appended_at", "_source_time"))
            for row, at, time in zip(batch.to_pylist(), *times, strict=True):
                yield _Line(
                    partition,
                    row["_offset"],
                    row["file"],
                    row["byte"],
                    row[LINE],
                    row.get("header"),
                    row["reason"],
                    at,
                    row["_source_position"],
                    time,
                )

    def _letter(self, owner: str, topic: TopicDefinition, line: _Line) -> Letter:
        name = f"{owner}/{topic.name}-{line.partition}-{line.offset}"
        row = _shown(line, line.line)
        return Letter(name, self.kind, owner, line.reason, row, line.at, topic.incarnation, place=line.offset)

    # --- editing ---------------------------------------------------------------------------------------------------

    def columns(self, letter: Letter) -> pa.Schema:
        """Return the line as the only column; UsageError if there is no line to edit."""
        line = self._line(letter)
        if line.line is None:
            raise UsageError(
                f"{letter.id} cannot be edited: no line of {line.file} can be read: {line.reason}",
                hint="add a readable copy of the file under another name, and drop the letter",
                letter=letter.id,
                file=line.file,
            )
        _, topic = self._target(letter.owner)
        if topic.private:
            raise UsageError(
                f"{letter.id} cannot be edited: topic {topic.name!r} has private columns, and the edited line would be stored unencrypted",
                hint="append the line to a file that the source reads, and drop the letter",
                letter=letter.id,
                topic=topic.name,
            )
        return pa.schema([(LINE, pa.string())])

    def edited(self, known: LetterState, values: Mapping[str, Any]) -> Edited:
        """Return the edited line; BadRowError if the source would reject it, too."""
        line, (options, topic) = self._line(known.letter), self._target(known.letter.owner)
        made = values[LINE]
        if not isinstance(made, str):
            raise UsageError(
                f"the line of {known.id} is text, not {made!r}",
                hint="to leave the line out, drop the letter",
                column=LINE,
                value=made,
            )
        row_of(options, topic, made, self._header(line, options))
        batch = pa.RecordBatch.from_arrays([pa.array([made])], names=[LINE])
        return Edited(known.letter.row, _shown(line, made), packed(batch))

    def _line(self, letter: Letter) -> _Line:
        topic = self._topics()[letter.owner]
        place = _place(letter.id, topic)
        found = [] if place is None else list(self._lines(topic, place[0], place[1], place[1] + 1))
        if not found:
            raise UsageError(
                f"the line of {letter.id} was removed from topic {topic.name}",
                hint="append the line to a file that the source reads, and drop the letter",
                letter=letter.id,
                topic=topic.name,
            )
        return found[0]

    def _target(self, owner: str) -> tuple[FilesOptions, TopicDefinition]:
        """Return the options by which a source reads lines, and the topic that it fills; UsageError if it is no longer
        declared."""
        made = self._definitions().get(owner)
        if made is None or made.kind != "files":
            raise UsageError(
                f"source {owner!r} is no longer declared, so its lines cannot be parsed",
                hint=f"CREATE SOURCE {owner} FROM FILES ..., or drop the letters",
                source=owner,
            )
        options = read_options(owner, made.resolved())
        return options, self._log.topic(options.topic)

    def _header(self, line: _Line, options: FilesOptions) -> str | None:
        if options.format != "csv" or not options.header or line.header is not None:
            return line.header
        return header_of(line.file, line.byte or 0, line.line or "", options)

    # --- replaying -------------------------------------------------------------------------------------------------

    def replay(self, owner: str, chosen: Sequence[LetterState], note: Note, *, force: bool) -> dict[str, str]:
        """Parse each line again and append its row, many in one append with the records of the actions, in the order of the
        lines."""
        options, topic = self._target(owner)
        left: dict[str, str] = {}
        rows: list[_ReparsedLine] = []
        for one in chosen:
            if one.state == "dropped":
                left[one.id] = f"it was dropped by {one.actions[-1].who}; an edit reopens it"
                continue
            try:
                rows.append(self._reparse(one, options, topic))
            except HeadwaterError as error:
                left[one.id] = error.message
        rows.sort(key=lambda one: (one.line.partition, one.line.offset))
        for begin in range(0, len(rows), TOGETHER_MAX):
            left |= self._append(rows[begin : begin + TOGETHER_MAX], topic, note, force)
        return left

    def _reparse(self, one: LetterState, options: FilesOptions, topic: TopicDefinition) -> _ReparsedLine:
        line, edit = self._line(one.letter), one.edit
        text = line.line
        if edit is not None and edit.edited_arrow is not None:
            text = unpacked(edit.edited_arrow).column(LINE)[0].as_py()
        elif text is not None and REPLACED in text:
            raise UsageError("the line had bytes that are not UTF-8, and were not stored: edit the line")
        if text is None:
            raise UsageError(
                f"no line of {line.file} can be read: add a readable copy of the file under another name"
            )
        row = row_of(options, topic, text, self._header(line, options))
        return _ReparsedLine(one, line, captured(row, topic, line.position, line.time))

    def _append(
        self, rows: Sequence[_ReparsedLine], topic: TopicDefinition, note: Note, force: bool
    ) -> dict[str, str]:
        """Append rows with the records of the actions. Letters on which another action was taken meanwhile are left out."""
        left: dict[str, str] = {}
        newer = _NewerRecords(self._log, topic) if topic.key and not force else None
        for _ in range(ATTEMPTS_MAX):
            expect: dict[str, dict[int, int]] = {}
            if newer is not None:
                expect = {topic.name: newer.read_new(min(one.line.at for one in rows))}
                said = {one.known.id: newer.refusal(one.row, one.line.at) for one in rows}
                left |= {letter: why for letter, why in said.items() if why is not None}
                rows = [one for one in rows if one.known.id not in left]
            if not rows:
                return left
            try:
                write_actions(
                    self._log,
                    [_replay_record(one.known, note) for one in rows],
                    {one.known.id: one.known.version for one in rows},
                    rows={topic.name: concat_rows([one.row for one in rows], topic.row_schema)},
                    expect=expect,
                )
                return left
            except ConflictError:
                actions = read_actions(self._log)
                for one in rows:
                    if actions.version(one.known.id) != one.known.version:
                        left[one.known.id] = "another action was recorded meanwhile: read the letter again"
                rows = [one for one in rows if one.known.id not in left]
                if not rows:
                    return left
        busy = f"too many concurrent appends to topic {topic.name}: try again"
        return left | {one.known.id: busy for one in rows}


class _NewerRecords:
    """Detects keys with records newer than a rejected line, which an older row must not replace."""

    def __init__(self, log: Log, topic: TopicDefinition) -> None:
        self._log = log
        self._topic = topic
        self._newest: dict[tuple[int, int], int] = {}
        """Append time of the newest record by hash of its key."""
        self._read_to: dict[int, int] = {}
        self._is_whole = True

    def read_new(self, since: int) -> dict[int, int]:
        """Read what was appended since a time and not read before; return the end of each partition."""
        names = list(self._topic.key)
        ends = {}
        for partition, info in self._log.partitions(self._topic.name).items():
            begin = self._read_to.get(partition)
            if begin is None:
                begin = self._log.offset_at(self._topic.name, partition, since, "appended")
                self._is_whole = self._is_whole and (begin > info.first or info.first == 0)
            try:
                for batch in self._log.read(
                    self._topic.name, partition, begin, info.end, [*names, "_appended_at"]
                ):
                    times = batch.column("_appended_at").cast(pa.int64()).to_numpy()
                    high, low = identities(batch.select(names).columns, batch.num_rows, exact=False)
                    for key, at in zip(
                        zip(high.tolist(), low.tolist(), strict=True), times.tolist(), strict=True
                    ):
                        self._newest[key] = max(at, self._newest.get(key, at))
            except GapError:
                self._is_whole = False
            self._read_to[partition] = ends[partition] = info.end
        return ends

    def refusal(self, row: pa.RecordBatch, at: int) -> str | None:
        """Return the reason why a row that was rejected at a time is not appended; None if it may be."""
        high, low = identities(row.select(list(self._topic.key)).columns, 1, exact=False)
        newest = self._newest.get((int(high[0]), int(low[0])))
        if newest is not None and newest >= at:
            return "a record of its key was appended at the same time or later: force replaces that record"
        if not self._is_whole:
            return (
                f"later records of topic {self._topic.name} were removed, and may have included one of its key: "
                "force replays it anyway"
            )
        return None


def _replay_record(one: LetterState, note: Note) -> LetterAction:
    return note.record(
        one.letter, action="replay", settled=True, edited=None if one.edit is None else one.edit.edited
    )


def _shown(line: _Line, text: str | None) -> str:
    return as_json({"file": line.file, "byte": line.byte, LINE: text})


def _place(letter: str, topic: TopicDefinition) -> tuple[int, int] | None:
    """Return the partition and the offset in a letter's name; None if it is not a letter of this topic."""
    name, *numbers = letter.partition("/")[2].rsplit("-", 2)
    if name.lower() != topic.name.lower() or len(numbers) != 2 or not all(map(str.isdecimal, numbers)):
        return None
    return int(numbers[0]), int(numbers[1])


def _spans(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending offsets as spans to read; offsets close together are in one span."""
    if not offsets:
        return
    places = np.asarray(offsets, np.int64)
    for part in np.split(places, np.flatnonzero(np.diff(places) > NEAR) + 1):
        yield int(part[0]), int(part[-1]) + 1
