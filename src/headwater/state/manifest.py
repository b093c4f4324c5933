"""The manifest of a tick, which names every run of every arrangement. `store` commits manifests.

Manifests are immutable, and a manifest mostly repeats its predecessor: runs cache their JSON text, and references in a
manifest that was read are parsed on demand.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import orjson
import pyarrow as pa
import xxhash

from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError, NewerVersionError
from headwater.core.positions import Ends, Token
from headwater.state.run_refs import RunRef

FORMAT = 2
"""Version of the format. In format 1 every run has a stream of its own; otherwise the formats are equal."""

Status = Literal["live", "backfilling", "stopped"]
Json = bytes

_PREFIX = b'{"format":%d,"checksum":"' % FORMAT
_PREFIXES = tuple(b'{"format":%d,"checksum":"' % known for known in range(1, FORMAT + 1))
_OPTIONS = orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True)
class CollectionRecord:
    """The engine's metadata of a view, a table or a derived relation besides its runs, needed to continue from a tick.

    Stored as the object `extra`; fields with their default value are left out, except those in `_ALWAYS`.
    """

    identity: str | None = None
    """Definition and plan of the collection: a change triggers a rebuild. None for a view that cannot be planned."""
    fingerprint: str | None = None
    """Fingerprint of the plan: a base with an equal fingerprint can be used."""
    sequence: int = 0
    """Last commit of the log that the collection includes."""
    begun: bool = False
    """Whether the first step has run, which adds constants and the rows of empty aggregates."""
    begins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By topic, its incarnation and the first offsets of its partitions when the build began."""
    table: bool = False
    """Whether this is the table of a keyed topic."""
    key: tuple[int, ...] = ()
    """Columns by which the contents are arranged."""
    base: int | None = None
    """Tick of the base from which the collection was built."""
    blocked: bool = False
    """Whether the collection is stopped only because one that it reads is stopped."""
    old: int | None = None
    """Tick that has the previous version, which this version has replaced."""
    ledger: Mapping[str, Mapping[str, int]] | None = None
    """Row accounting of a view: the outcomes of the rows read, by topic."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Watermarks of the topics on which the view waits, at its positions."""
    keeps: tuple[str, ...] = ()
    """Topics whose private values the collection may store."""
    unplanned: bool = False
    """Whether the view cannot be planned as declared."""
    derived: bool = False
    """Whether this is a derived relation, an output of a view besides its rows."""

    def document(self) -> dict[str, Any]:
        """Return the stored form of the record."""
        always = _ALWAYS if self.identity is not None else ("begins", "key") if self.unplanned else ()
        return {
            name: value
            for name, value in vars(self).items()
            if name in always or (value is not None and (value or name == "ledger"))
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> CollectionRecord:
        """Parse the stored form of a record."""
        columns = {name: tuple(document[name]) for name in ("key", "keeps") if name in document}
        return cls(**{**document, **columns})


_ALWAYS = ("identity", "fingerprint", "sequence", "begun", "begins", "table", "key")


@dataclass(frozen=True)
class ViewState:
    """A view at a tick.

    `incarnation` increases when the view is declared again, and `built` is the tick at which its build began: together
    they are the view's *history*, within which changes add up. Unless `status` is 'live' the view is not part of the
    tick: `reason` explains why, `last_tick` is the last tick that it was part of, and `positions` is its own progress.
    `contents` is the arrangement with its rows, `change` the run of changes of this tick (None if there are none),
    `schema` the text of `encode_schema`.
    """

    name: str
    incarnation: int
    status: Status
    contents: str
    schema: str
    reason: str | None = None
    last_tick: int | None = None
    positions: Ends = field(default_factory=dict)
    change: RunRef | None = None
    built: int = 0
    record: CollectionRecord = field(default_factory=CollectionRecord)

    @property
    def history(self) -> tuple[int, int]:
        """History of the view: its incarnation and the tick at which its build began."""
        return self.incarnation, self.built

    @property
    def arrow_schema(self) -> pa.Schema:
        """Columns of the view."""
        return decode_schema(self.schema)

    def _json(self) -> Json:
        plain = {
            "incarnation": self.incarnation,
            "built": self.built,
            "status": self.status,
            "reason": self.reason,
            "last_tick": self.last_tick,
            "positions": self.positions,
            "contents": self.contents,
            "change": orjson.Fragment(self.change.json) if self.change else None,
            "schema": self.schema,
            "extra": self.record.document(),
        }
        return orjson.dumps(plain, option=_OPTIONS)

    @classmethod
    def _from_json(cls, name: str, row: Mapping[str, Any]) -> ViewState:
        return cls(
            name=name,
            incarnation=row["incarnation"],
            built=row["built"],
            status=row["status"],
            contents=row["contents"],
            schema=row["schema"],
            reason=row["reason"],
            last_tick=row["last_tick"],
            positions=_ends(row["positions"]),
            change=RunRef.from_json(row["change"]) if row["change"] else None,
            record=CollectionRecord.read(row["extra"]),
        )


@dataclass(frozen=True)
class Manifest:
    """The complete description of a tick.

    `positions` is its cut through the log, `sequence` the number of the last commit of the log within it.
    `committed_at` never decreases from tick to tick. `arrangements` maps an id such as 'revenue@3/agg.0' to its runs,
    oldest first; `extra` is JSON data of the engine.

    `id` is random, and distinguishes the tick from another tick with the same number: a workspace restored from an
    older copy assigns the same numbers again. `previous` is the id of the preceding tick, and `commit` that of the
    commit `sequence`. Each is '' if unknown, because older versions did not assign ids.
    """

    tick: int
    epoch: int
    committed_at: Microseconds
    sequence: int
    positions: Ends
    arrangements: Mapping[str, tuple[RunRef, ...]] = field(default_factory=dict)
    views: Mapping[str, ViewState] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    previous: str = ""
    commit: str = ""

    @property
    def token(self) -> Token:
        """Token that identifies the tick."""
        return Token(self.tick, self.id)

    @cached_property
    def files(self) -> frozenset[str]:
        """Files of runs that the manifest names."""
        if isinstance(self.arrangements, _Arrangements):
            named = set(self.arrangements.files())
        else:
            named = {ref.file for refs in self.arrangements.values() for ref in refs}
        named |= {view.change.file for view in self.views.values() if view.change}
        return frozenset(named)

    def kept_for(self, view: ViewState) -> dict[str, tuple[RunRef, ...]]:
        """Return the arrangements of a view, by id: that of its rows, and those of its operators."""
        if not view.contents:
            return {}
        prefix = view.contents.rsplit("/", 1)[0] + "/"
        return {name: self.arrangements[name] for name in self.arrangements if name.startswith(prefix)}

    def encode(self) -> Json:
        """Return the bytes of the manifest's file."""
        numbers: dict[str, Any] = {
            "tick": self.tick,
            "epoch": self.epoch,
            "committed_at": self.committed_at,
            "sequence": self.sequence,
        }
        ids = {"id": self.id, "previous": self.previous, "commit": self.commit}
        numbers |= {name: known for name, known in ids.items() if known}
        rest = b"".join(
            (
                orjson.dumps(numbers)[1:-1],
                b',\n"positions":',
                orjson.dumps(self.positions, option=_OPTIONS),
                b',\n"views":{\n',
                b",\n".join(orjson.dumps(name) + b":" + view._json() for name, view in self.views.items()),
                b'\n},\n"arrangements":{\n',
                b",\n".join(_arrangement(name, refs) for name, refs in self.arrangements.items()),
                b'\n},\n"extra":',
                orjson.dumps(self.extra, option=_OPTIONS),
                b"}\n",
            )
        )
        return b"".join((_PREFIX, _checksum(rest), b'",\n', rest))

    @classmethod
    def decode(cls, data: bytes, name: str) -> Manifest:
        """Parse the bytes of file `name`; raises CorruptionError, which names the file, if they are damaged, and
        NewerVersionError if the format is newer."""
        start = len(_PREFIX) + 16 + len(b'",\n')
        if data.startswith(_PREFIXES) and data[len(_PREFIX) : start] == _checksum(data[start:]) + b'",\n':
            row = orjson.loads(data)
            return cls(
                tick=row["tick"],
                epoch=row["epoch"],
                committed_at=row["committed_at"],
                sequence=row["sequence"],
                positions=_ends(row["positions"]),
                arrangements=_Arrangements(row["arrangements"]),
                views={view: ViewState._from_json(view, about) for view, about in row["views"].items()},
                extra=row["extra"],
                id=row.get("id", ""),
                previous=row.get("previous", ""),
                commit=row.get("commit", ""),
            )
        raise _unreadable(data, name)


class _Arrangements(Mapping[str, tuple[RunRef, ...]]):
    """The arrangements of a manifest that was read: references are parsed on demand."""

    def __init__(self, rows: dict[str, list[list[Any]]]) -> None:
        self._rows = rows
        self._made: dict[str, tuple[RunRef, ...]] = {}

    def __getitem__(self, name: str) -> tuple[RunRef, ...]:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = tuple(map(RunRef.from_json, self._rows[name]))
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return repr(dict(self))

    def files(self) -> Iterator[str]:
        """Yield the named files, with repetitions."""
        return (row[0] for rows in self._rows.values() for row in rows)


def encode_schema(schema: pa.Schema) -> str:
    """Encode an Arrow schema as text: its IPC message in base 64."""
    return base64.b64encode(schema.serialize()).decode("ascii")


@lru_cache(maxsize=1024)
def decode_schema(text: str) -> pa.Schema:
    """Decode a schema from the text of `encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _arrangement(name: str, refs: Sequence[RunRef]) -> Json:
    return b"%b:[%b]" % (orjson.dumps(name), b",".join([ref.json for ref in refs]))


def _ends(row: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(p): end for p, end in parts.items()} for topic, parts in row.items()}


def _checksum(rest: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(rest).encode("ascii")


def _unreadable(data: bytes, name: str) -> CorruptionError | NewerVersionError:
    found = None
    try:
        found = orjson.loads(data)["format"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        pass
    if isinstance(found, int) and found > FORMAT:
        return NewerVersionError(
            f"{name} was written by a newer version of Headwater (format {found})",
            detail=f"this version reads formats up to {FORMAT}",
            hint="upgrade Headwater: pip install -U headwater",
            found=found,
            supported=FORMAT,
            file=name,
        )
    return CorruptionError(
        f"{name} is damaged at byte 0: its checksum does not match",
        detail="the file names the runs of one tick; the log is not affected",
        hint="`headwater rebuild` rebuilds the views from the log",
        file=name,
        offset=0,
    )
