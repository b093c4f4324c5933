"""Opens a workspace: checkpoints, the chain of journals, and recovery from a loss of power.

A checkpoint `checkpoints/<journal>-<byte>.json` is the state up to that byte of that journal, one JSON document followed by a
line with its checksum. The two newest are kept: if one is damaged, the other and the journals since then give the same state.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import orjson
import xxhash

from headwater.core.errors import CorruptionError, HeadwaterError, WorkspaceMissingError
from headwater.core.storage import File, Storage, is_running
from headwater.log.embedded.journal import frames, salvage
from headwater.log.embedded.journal.file_names import checkpoint_place, unfinished_by
from headwater.log.embedded.journal.frames import DamagedFrameError
from headwater.log.embedded.journal.journal_file import (
    FOLDER,
    Damage,
    Head,
    Record,
    Scanned,
    claimed,
    journal_name,
    journals,
    newest_journal,
    proven,
    scan,
)
from headwater.log.embedded.journal.journal_state import JournalState
from headwater.log.embedded.journal.record_kinds import apply_record

CHECKPOINTS = "checkpoints"
KEPT = 2


@dataclass
class LoadedState:
    """A state and its position in the journals."""

    state: JournalState
    journal: int
    applied: int
    records: int = 0
    """Number of records of that journal that were applied."""
    findings: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Descriptions of journal records that could not be repaired."""
    repaired: bool = False
    """Whether a damaged record was repaired or left out; the next checkpoint supersedes it."""


def begin_of(storage: Storage, number: int) -> Scanned | None:
    """Return the first record of a journal; None if there is no such journal, or it was never begun. CorruptionError if it was
    begun and that record is damaged beyond repair."""
    name = journal_name(number)
    if not storage.exists(name):
        return None
    try:
        with contextlib.closing(storage.open(name, read_only=True)) as file:
            first = next(scan(file, 0), None)
            if isinstance(first, Damage) and first.end is not None:
                record = salvage.repair(storage, file.read_at(0, first.end))
                if record is None:
                    raise damaged_begin(number)
                first = Scanned(0, first.end, record, memoryview(b""))
    except CorruptionError:
        raise
    except HeadwaterError:
        return None
    return first if isinstance(first, Scanned) and first.record["k"] == "begin" else None


def damaged_begin(number: int) -> CorruptionError:
    """Return the error for a journal whose first record cannot be read, although the journal was begun."""
    name = journal_name(number)
    return CorruptionError(
        f"{name} is damaged at byte 0: its first record, which has the end of the journal before it, cannot be read",
        detail="its commits are not lost, but cannot be distinguished from writes that were not committed",
        hint=f"restore {name} from a backup",
        file=name,
        offset=0,
    )


def missing(numbers: Sequence[int], there: Sequence[int]) -> CorruptionError:
    """Return the error for missing journals in which, by the remaining files, commits were acknowledged."""
    names = [journal_name(number) for number in numbers]
    return CorruptionError(
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing: acknowledged commits are in "
        f"{'it' if len(names) == 1 else 'them'}",
        detail=f"the newest checkpoint needs every later journal; {_proof(numbers[0], there)}",
        hint=_remedy(numbers[0], there),
        file=names[0],
        offset=0,
        reason="missing",
    )


def cut_short(number: int, size: int, limit: int, there: Sequence[int]) -> CorruptionError:
    """Return the error for a journal that ends before acknowledged commits, such as an older copy of it."""
    name = journal_name(number)
    return CorruptionError(
        f"{name} ends at byte {size}: acknowledged commits are missing, up to byte {limit}",
        detail=f"it is an older copy, or was truncated; {_proof(number, there)}",
        hint=_remedy(number, there),
        file=name,
        offset=size,
        reason="truncated",
    )


def _proof(number: int, there: Sequence[int]) -> str:
    """Return which file proves that commits were acknowledged in a journal."""
    if later := [journal_name(n) for n in there if n > number]:
        return f"{later[-1]} continues after those commits"
    return "`head` shows that commits in it are visible"


def _remedy(number: int, there: Sequence[int]) -> str:
    """Return the remedy for missing commits of a journal."""
    later = [journal_name(n) for n in there if n > number]
    away = f"move {', '.join(later)} out of the folder, and delete" if later else "delete"
    return (
        "restore the whole folder of the workspace from one backup, or this file. Where there is no backup, "
        f"{away} the file `head` and those named head.1, head.2 and so on: the log then ends before the missing commits and gives "
        "their offsets to new records; every view, cursor and sink that had read them must be rebuilt"
    )


def load(storage: Storage, receipts_max: int, head: Head | None, boot: str) -> LoadedState:
    """Load the newest intact checkpoint and apply every record after it, up to the end that each next journal states.

    The newest journal is read as far as `head` states, or as far as it was durable if `head` is of another boot; the holder of
    the lock decides about the remainder. CorruptionError if a journal, or the end of one, is missing.
    """
    with _no_collection():
        return _load(storage, receipts_max, head, boot)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection: loading creates many objects that all stay, and collecting among them takes half of the
    time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _load(storage: Storage, receipts_max: int, head: Head | None, boot: str) -> LoadedState:
    loaded = _newest_checkpoint(storage, receipts_max)
    there = journals(storage)
    newest, shown = max(there, default=0), 0 if head is None else head.journal
    absent = sorted(set(range(loaded.journal, max(newest, shown) + 1)) - set(there))
    if absent:
        raise missing(absent, there)
    while True:
        following = begin_of(storage, loaded.journal + 1) if loaded.journal < newest else None
        if following is not None:
            limit = following.record["previous_end"]
        elif loaded.journal < max(newest - 1, shown):  # only the newest journal may lack its first record
            raise damaged_begin(loaded.journal + 1)
        else:
            limit = 0
            if head is not None and head.journal == loaded.journal:
                limit = head.visible if head.boot == boot else head.durable
        _replay(storage, loaded, limit, there)
        if following is None:
            return loaded
        loaded.journal, loaded.applied, loaded.records = loaded.journal + 1, 0, 0


def _replay(storage: Storage, loaded: LoadedState, limit: int, there: Sequence[int]) -> None:
    name = journal_name(loaded.journal)
    if not storage.exists(name):
        raise CorruptionError(
            f"{name} is missing",
            detail="the journal has the commits since the last checkpoint",
            hint="restore the workspace's journal folder from a backup",
            file=name,
            offset=0,
            reason="missing",
        )
    if limit <= loaded.applied:
        return
    with contextlib.closing(storage.open(name, read_only=True)) as file:
        size, whole, found = file.size(), loaded.applied, False
        for record, end, repaired in follow(
            storage, file, (loaded.applied, limit), loaded.state, loaded.findings, loaded.lost
        ):
            if record is not None:
                apply_record(loaded.state, record)
                loaded.records += 1
            loaded.applied, loaded.repaired = end, loaded.repaired or repaired
            whole, found = (end, False) if end <= size else (whole, found or record is not None)
        if size < limit and not (found and whole + claimed(file, whole) == limit):
            # more may be missing than the one cut record whose frames are in the segments
            raise cut_short(loaded.journal, size, limit, there)


def follow(
    storage: Storage,
    file: File,
    span: tuple[int, int],
    state: JournalState,
    findings: list[str],
    lost: list[str],
) -> Iterator[tuple[Record | None, int, bool]]:
    """Yield (record, its end, whether it was damaged) over a span of a journal that counts. The caller applies each record to
    `state` before it takes the next. The record is None if it is lost, which is described in `findings` and in `lost`."""
    found: list[Scanned | Damage] = list(scan(file, *span))
    reached = found[-1].end if found else span[0]
    if reached is not None and reached < span[1]:
        found.append(Damage(reached, None))  # the file ends too early, or in zeros
    for place, item in enumerate(found):
        if isinstance(item, Scanned):
            yield item.record, item.end, False
            continue
        end = item.end if item.end is not None else span[1]
        record = salvage.repair(storage, file.read_at(item.start, end - item.start))
        if record is not None:
            findings.append(f"{file.name} was damaged at byte {item.start}; the record there was repaired")
            yield record, end, True
            continue
        after = found[place + 1] if item.end is not None else None
        rows = 0
        for record in salvage.appends_from_frames(
            storage, state, after.record["seq"] if isinstance(after, Scanned) else None
        ):
            rows += sum(part["r"] for part in record["parts"])
            yield record, end, True
        lost.append(
            f"{file.name} is damaged at byte {item.start}, up to byte {end}: {rows} rows of the commits there were "
            "found in the segments; changes of cursors and topics there are lost"
        )
        findings.append(lost[-1])
        yield None, end, True


def _newest_checkpoint(storage: Storage, receipts_max: int) -> LoadedState:
    findings: list[str] = []
    for journal, byte, name in reversed(checkpoints(storage)):
        begin = begin_of(storage, journal + 1)
        if begin is not None and begin.record["previous_end"] < byte:
            findings.append(f"{name} has commits that were voided; the checkpoint before it was used")
            continue
        data = storage.read(name)
        text, _, digest = data.rpartition(b"\n")
        if xxhash.xxh3_64_hexdigest(text).encode() == digest:
            state = JournalState.from_json(orjson.loads(text)["state"], receipts_max)
            return LoadedState(state, journal, byte, findings=findings)
        findings.append(f"{name} fails its checksum; the checkpoint before it was used")
    if findings and not storage.exists(journal_name(1)):
        raise CorruptionError(
            "no checkpoint of this workspace passes its checksum",
            detail="; ".join(findings),
            hint="restore the checkpoints folder from a backup",
            file=CHECKPOINTS,
            offset=0,
            reason="no-checkpoint",
        )
    return LoadedState(JournalState(receipts_max=receipts_max), 1, 0, findings=findings)


def checkpoints(storage: Storage) -> list[tuple[int, int, str]]:
    places = [(checkpoint_place(entry), entry) for entry in storage.files(CHECKPOINTS)]
    return sorted((*place, f"{CHECKPOINTS}/{entry}") for place, entry in places if place is not None)


def write_checkpoint(storage: Storage, state: JournalState, journal: int, byte: int) -> None:
    """Write the state durably."""
    text = orjson.dumps({"format": 1, "state": state.to_json()}, option=orjson.OPT_NON_STR_KEYS)
    digest = xxhash.xxh3_64_hexdigest(text).encode()
    storage.write_atomic(f"{CHECKPOINTS}/{journal:08d}-{byte:012d}.json", text + b"\n" + digest)


def clean(storage: Storage, current: int) -> None:
    """Remove checkpoints and journals that are no longer needed, except the two newest checkpoints, and unfinished files of
    dead processes."""
    stored = checkpoints(storage)
    for _, _, name in stored[:-KEPT]:
        storage.remove(name)
    kept = stored[-KEPT:]
    oldest = kept[0][0] if len(kept) == KEPT else 0
    for number in journals(storage):
        if number < min(oldest, current):
            storage.remove(journal_name(number))
    for folder in (FOLDER, CHECKPOINTS):
        for entry in storage.files(folder):
            if (pid := unfinished_by(entry)) is not None and not is_running(pid):
                storage.remove(f"{folder}/{entry}")


def repair_after_power_loss(storage: Storage, findings: list[str], head: Head | None) -> bool:
    """Make the segments match the journal after the machine restarted; return whether the journal had to be cut.

    Frames that the journal carries are written to their segments again. A commit whose frames the journal does not carry, and
    are not whole, was never acknowledged, unless `head` or a later record states that it was durable: the journal is cut before
    it.
    """
    first, byte, _ = max(checkpoints(storage), default=(1, 0, ""))
    for number in range(first, newest_journal(storage) + 1):
        if not storage.exists(journal_name(number)):
            continue
        with contextlib.closing(storage.open(journal_name(number))) as file:
            following = begin_of(storage, number + 1)
            limit = following.record["previous_end"] if following is not None else None
            found = list(scan(file, byte if number == first else 0, limit))
            if limit is None:
                limit = proven((f for f in found if isinstance(f, Scanned)), number)
                if head is not None and head.journal == number:
                    limit = max(limit, head.durable)
            for item in found:
                if isinstance(item, Damage):
                    if item.start >= limit:
                        break  # a torn write: nothing from here on was acknowledged, and it is about to be cut
                    continue
                if item.record["k"] != "append" or _restore(storage, item, findings):
                    continue
                if item.end <= limit:
                    findings.append(
                        f"{file.name}, byte {item.start}: frames of this commit are damaged in its segments"
                    )
                    continue
                findings.append(
                    f"{file.name} was truncated at byte {item.start}: the frames of its last commit never reached the disk"
                )
                file.truncate(item.start)
                file.sync()
                return True
    return False


def rewrite_frames(storage: Storage, names: Collection[str], current: int, end: int) -> None:
    """Write the frames that the journals since the newest checkpoint carry into these segments again, up to byte `end` of the
    current journal, so that the next sync of a segment writes them."""
    first, byte, _ = max(checkpoints(storage), default=(1, 0, ""))
    for number in range(first, current + 1):
        following = begin_of(storage, number + 1) if number < current else None
        limit = end if following is None else following.record["previous_end"]
        with contextlib.closing(storage.open(journal_name(number), read_only=True)) as file:
            for found in scan(file, byte if number == first else 0, limit):
                if isinstance(found, Scanned) and found.record["k"] == "append":
                    _rewrite(storage, found, names)


def _rewrite(storage: Storage, found: Scanned, names: Collection[str]) -> None:
    taken = 0
    for part in found.record["parts"]:
        inline = part.get("i", 0)
        carried, taken = found.blob[taken : taken + inline], taken + inline
        if inline and part["s"] in names:
            try:
                with contextlib.closing(storage.open(part["s"])) as segment:
                    segment.write_at(part["b"][0], carried)
            except WorkspaceMissingError:  # sealed or removed meanwhile
                continue


def _restore(storage: Storage, found: Scanned, findings: list[str]) -> bool:
    """Write a record's frames to their segments where they are missing; return False if frames are lost."""
    taken = 0
    for part in found.record["parts"]:
        start, stop = part["b"]
        inline = part.get("i", 0)
        carried, taken = bytes(found.blob[taken : taken + inline]), taken + inline
        try:
            with contextlib.closing(storage.open(part["s"])) as segment:
                if part.get("new") and not frames.is_prefix(segment.read_at(0, start), part.get("x")):
                    return False
                if inline:
                    if segment.size() < start:
                        return False
                    if segment.read_at(start, stop - start) != carried:
                        segment.write_at(start, carried)
                        segment.sync()
                        findings.append(f"{part['s']}: {inline} bytes were restored from the journal")
                elif not _whole_frames(segment.read_at(start, stop - start)):
                    return False
        except HeadwaterError:
            # The file is missing: a later record sealed or removed it, or it never reached the disk.
            if not part.get("new"):
                continue
            return _gone_on_purpose(storage, part["s"])
    return True


def _gone_on_purpose(storage: Storage, name: str) -> bool:
    """Whether a later record replaced the segment."""
    for number in range(1, newest_journal(storage) + 1):
        if storage.exists(journal_name(number)):
            with contextlib.closing(storage.open(journal_name(number), read_only=True)) as file:
                for found in scan(file, 0):
                    if isinstance(found, Scanned) and name in found.record.get("old", ()):
                        return True
                    if isinstance(found, Scanned) and found.record["k"] == "drop":
                        return True
    return False


def _whole_frames(data: bytes) -> bool:
    view, at = memoryview(data), 0
    try:
        while at < len(view):
            header = frames.parse_header(view, at)
            frames.check_body(header, view[at + header.head_bytes : at + header.total_bytes])
            at += header.total_bytes
    except DamagedFrameError:
        return False
    return at == len(view)
