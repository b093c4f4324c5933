"""Opening a workspace: checkpoints, the chain of journals, and what to do after the power was lost.

A checkpoint `checkpoints/<journal>-<byte>.json` is the state up to that byte of that journal, one JSON document
followed by a line with its checksum. The two newest are kept: if one is damaged, the other and the journals since then
give the same state.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson
import xxhash

from headwater.errors import CorruptionError, HeadwaterError, NewerVersionError
from headwater.log.embedded import frames, salvage
from headwater.log.embedded.frames import DamagedFrameError
from headwater.log.embedded.journal import (
    FOLDER,
    Damage,
    Head,
    Record,
    Scanned,
    journal_name,
    newest_journal,
    proven,
    scan,
)
from headwater.log.embedded.state import State
from headwater.storage import File, Storage

CHECKPOINTS = "checkpoints"
KEPT = 2


@dataclass
class Loaded:
    """A state and where in the journals it stands."""

    state: State
    journal: int
    applied: int
    records: int = 0
    """Records of that journal that were folded in."""
    findings: list[str] = field(default_factory=list)
    mended: bool = False
    """Whether a damaged record had to be mended or left out: a new checkpoint puts that behind."""


def begin_of(storage: Storage, number: int) -> Scanned | None:
    """The first record of a journal; None if there is no such journal, or it was never begun."""
    name = journal_name(number)
    if not storage.exists(name):
        return None
    try:
        with contextlib.closing(storage.open(name, read_only=True)) as file:
            first = next(scan(file, 0), None)
    except HeadwaterError:
        return None
    return first if isinstance(first, Scanned) and first.record["k"] == "begin" else None


def load(storage: Storage, receipts_max: int, head: Head | None) -> Loaded:
    """The newest good checkpoint plus every record after it, up to what each next journal says of its predecessor.
    The newest journal is read as far as `head` shows it; what lies beyond is for the holder of the lock to judge."""
    with _no_collection():
        return _load(storage, receipts_max, head)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Loading makes many objects that all stay: looking for garbage among them is half of the time it takes."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _load(storage: Storage, receipts_max: int, head: Head | None) -> Loaded:
    loaded = _newest_checkpoint(storage, receipts_max)
    newest = newest_journal(storage)
    while True:
        following = begin_of(storage, loaded.journal + 1) if loaded.journal < newest else None
        if following is not None:
            limit = following.record["previous_end"]
        else:
            limit = head.visible if head is not None and head.journal == loaded.journal else 0
        _replay(storage, loaded, limit)
        if following is None:
            return loaded
        loaded.journal, loaded.applied, loaded.records = loaded.journal + 1, 0, 0


def _replay(storage: Storage, loaded: Loaded, limit: int) -> None:
    name = journal_name(loaded.journal)
    if not storage.exists(name):
        raise CorruptionError(
            f"{name} is missing",
            detail="the journal says what was committed since the last checkpoint",
            hint="restore the workspace's journal folder from a backup",
            file=name,
            offset=0,
        )
    if limit <= loaded.applied:
        return
    with contextlib.closing(storage.open(name, read_only=True)) as file:
        for record, end, mended in follow(
            storage, file, (loaded.applied, limit), loaded.state, loaded.findings
        ):
            if record is not None:
                _apply(loaded.state, record)
                loaded.records += 1
            loaded.applied, loaded.mended = end, loaded.mended or mended


def follow(
    storage: Storage, file: File, span: tuple[int, int], state: State, findings: list[str]
) -> Iterator[tuple[Record | None, int, bool]]:
    """(record, where it ends, whether it was damaged) over a span of a journal that is known to count, for the caller
    to fold into `state` as they come; None in place of a record that is lost."""
    found: list[Scanned | Damage] = list(scan(file, *span))
    reached = found[-1].end if found else span[0]
    if reached is not None and reached < span[1]:
        found.append(Damage(reached, None))  # the file ends too early, or in zeros
    for place, item in enumerate(found):
        if isinstance(item, Scanned):
            yield item.record, item.end, False
            continue
        end = item.end if item.end is not None else span[1]
        record = salvage.mend(storage, file.read_at(item.start, end - item.start))
        if record is not None:
            findings.append(f"{file.name} was damaged at byte {item.start}; the record there could be mended")
            yield record, end, True
            continue
        after = found[place + 1] if item.end is not None else None
        rows = 0
        for record in salvage.appends_from_frames(
            storage, state, after.record["seq"] if isinstance(after, Scanned) else None
        ):
            rows += sum(part["r"] for part in record["parts"])
            yield record, end, True
        findings.append(
            f"{file.name} is damaged at byte {item.start}, up to byte {end}: {rows} rows of the commits there were "
            "found in the segments; cursors that were moved and topics that were changed there are as before"
        )
        yield None, end, True


def _apply(state: State, record: Record) -> None:
    try:
        state.apply(record)
    except AttributeError:
        raise NewerVersionError(
            f"the journal has a record of kind {record['k']!r}, which this version does not know",
            hint="upgrade Headwater: pip install -U headwater",
            found=record["k"],
        ) from None


def _newest_checkpoint(storage: Storage, receipts_max: int) -> Loaded:
    findings: list[str] = []
    for journal, byte, name in reversed(_checkpoints(storage)):
        data = storage.read(name)
        text, _, digest = data.rpartition(b"\n")
        if xxhash.xxh3_64_hexdigest(text).encode() == digest:
            state = State.from_json(orjson.loads(text)["state"], receipts_max)
            return Loaded(state, journal, byte, findings=findings)
        findings.append(f"{name} fails its checksum and was passed over for the one before it")
    if findings and not storage.exists(journal_name(1)):
        raise CorruptionError(
            "no checkpoint of this workspace passes its checksum",
            detail="; ".join(findings),
            hint="restore the checkpoints folder from a backup",
            file=CHECKPOINTS,
            offset=0,
        )
    return Loaded(State(receipts_max=receipts_max), 1, 0, findings=findings)


def _checkpoints(storage: Storage) -> list[tuple[int, int, str]]:
    found = []
    for name in storage.list(CHECKPOINTS):
        journal, _, byte = name.removesuffix(".json").partition("-")
        if name.endswith(".json") and journal.isdigit() and byte.isdigit():
            found.append((int(journal), int(byte), f"{CHECKPOINTS}/{name}"))
    return sorted(found)


def write_checkpoint(storage: Storage, state: State, journal: int, byte: int) -> None:
    """Write the state durably."""
    text = orjson.dumps({"format": 1, "state": state.to_json()}, option=orjson.OPT_NON_STR_KEYS)
    digest = xxhash.xxh3_64_hexdigest(text).encode()
    storage.write_atomic(f"{CHECKPOINTS}/{journal:08d}-{byte:012d}.json", text + b"\n" + digest)


def clean(storage: Storage, current: int) -> None:
    """Remove checkpoints and journals that are no longer needed, keeping a second line."""
    checkpoints = _checkpoints(storage)
    for _, _, name in checkpoints[:-KEPT]:
        storage.remove(name)
    kept = checkpoints[-KEPT:]
    oldest = kept[0][0] if len(kept) == KEPT else 0
    for name in storage.list(FOLDER):
        if name[:8].isdigit() and int(name[:8]) < min(oldest, current):
            storage.remove(f"{FOLDER}/{name}")


def repair_after_power_loss(storage: Storage, findings: list[str], head: Head | None) -> bool:
    """Bring segments level with the journal after the machine restarted; True if the journal had to be cut.

    Frames that the journal carries are written to their segments again. A commit whose frames it does not carry, and
    that are not whole, was never acknowledged, unless `head` or a later record says that it was durable: the journal
    ends before it.
    """
    first, byte, _ = max(_checkpoints(storage), default=(1, 0, ""))
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
                    f"{file.name} was cut at byte {item.start}: its frames never reached the disk"
                )
                file.truncate(item.start)
                file.sync()
                return True
    return False


def _restore(storage: Storage, found: Scanned, findings: list[str]) -> bool:
    """Make the segments hold a record's frames; False if they cannot."""
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
            # a file of this record is gone: it was sealed or removed by a later record, or it never reached the disk
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
