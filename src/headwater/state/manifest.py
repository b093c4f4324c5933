"""A tick as it is committed: one manifest that names every run of every arrangement. How it is committed is in `store`.

Manifests are immutable, and most of one is that of the tick before: runs keep their text, and a manifest that was read
makes its references when they are asked for.
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
"""In format 1 every run has a stream of its own; else it is the same."""

Status = Literal["live", "backfilling", "stopped"]
Json = bytes

_PREFIX = b'{"format":%d,"checksum":"' % FORMAT
_PREFIXES = tuple(b'{"format":%d,"checksum":"' % known for known in range(1, FORMAT + 1))
_OPTIONS = orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True)
class CollectionRecord:
    """What the engine keeps of a view, a table or a derived relation besides its runs, to go on from it.

    Stored as the object `extra`; a field that has its default is left out, but for those that every planned one has.
    """

    identity: str | None = None
    """The definition and its plan: another identity is built from the start. None for a view that cannot be planned."""
    fingerprint: str | None = None
    """The plan, from which a base may be taken over."""
    sequence: int = 0
    """The last commit of the log that is in it."""
    begun: bool = False
    """Whether it has made its first step, in which constants and empty aggregates come in."""
    begins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By topic, its incarnation and the first offsets of its partitions when the build began."""
    table: bool = False
    """Whether it is the table of a keyed topic."""
    key: tuple[int, ...] = ()
    """The columns that its contents are arranged by."""
    base: int | None = None
    """The tick of the base that it was built on."""
    blocked: bool = False
    """Whether it is stopped for no other reason than that one below it is."""
    old: int | None = None
    """The tick that has the version which it has replaced."""
    ledger: Mapping[str, Mapping[str, int]] | None = None
    """By topic, what became of the rows that a view has read."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Of the topics that it waits for, at its positions."""
    keeps: tuple[str, ...] = ()
    """The topics of which it may keep private values."""
    unplanned: bool = False
    """Whether the view cannot be planned as it is declared."""
    derived: bool = False
    """Whether it is what a view gives beside its rows."""

    def document(self) -> dict[str, Any]:
        """The object that is stored."""
        always = _ALWAYS if self.identity is not None else ("begins", "key") if self.unplanned else ()
        return {
            name: value
            for name, value in vars(self).items()
            if name in always or (value is not None and (value or name == "ledger"))
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> CollectionRecord:
        """The record that was stored."""
        columns = {name: tuple(document[name]) for name in ("key", "keeps") if name in document}
        return cls(**{**document, **columns})


_ALWAYS = ("identity", "fingerprint", "sequence", "begun", "begins", "table", "key")


@dataclass(frozen=True)
class ViewState:
    """A view at a tick.

    `incarnation` rises when the view is declared anew, and `built` is the tick at which it was begun to be built: together
    they are its *history*, within which changes add up. Unless `status` is 'live' the view is no part of the tick: `reason`
    says why, `last_tick` is the last that it was part of, and `positions` is how far it is by itself. `contents` is
    the arrangement with its rows, `change` the run of what this very tick changed (None if nothing), `schema` the text
    of `encode_schema`.
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
        """Which history of the view this is."""
        return self.incarnation, self.built

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the view."""
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
    """All that a tick is.

    `positions` is its cut through the log, `sequence` the number of the last commit of the log within it. `committed_at`
    never falls from tick to tick. `arrangements` maps an id such as 'revenue@3/agg.0' to its runs, oldest first;
    `extra` is the engine's own: anything that JSON can say.

    `id` is random, and tells the tick from another one of its number: an older copy of the workspace that is put back makes
    the same numbers once more. `previous` is the id of the tick that it goes on from, and `commit` that of the commit
    `sequence`. Each is '' where it is not known: there were no ids before.
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
        """What names the tick."""
        return Token(self.tick, self.id)

    @cached_property
    def files(self) -> frozenset[str]:
        """Every file of runs that it names."""
        if isinstance(self.arrangements, _Arrangements):
            named = set(self.arrangements.files())
        else:
            named = {ref.file for refs in self.arrangements.values() for ref in refs}
        named |= {view.change.file for view in self.views.values() if view.change}
        return frozenset(named)

    def kept_for(self, view: ViewState) -> dict[str, tuple[RunRef, ...]]:
        """Every arrangement of a view, by its id: that of its rows, and those of its operators."""
        if not view.contents:
            return {}
        prefix = view.contents.rsplit("/", 1)[0] + "/"
        return {name: self.arrangements[name] for name in self.arrangements if name.startswith(prefix)}

    def encode(self) -> Json:
        """The bytes of its file."""
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
        """The manifest that the bytes of file `name` are; an error that names the file if they are damaged."""
        start = len(_PREFIX) + 16 + len(b'",\n')
        if data.startswith(_PREFIXES) and data[len(_PREFIX) : len(_PREFIX) + 16] == _checksum(data[start:]):
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
    """The arrangements of a manifest that was read: references are made when they are asked for."""

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
        """Files that are named, with repetitions."""
        return (row[0] for rows in self._rows.values() for row in rows)


def encode_schema(schema: pa.Schema) -> str:
    """An Arrow schema as text: its IPC message in base 64."""
    return base64.b64encode(schema.serialize()).decode("ascii")


@lru_cache(maxsize=1024)
def decode_schema(text: str) -> pa.Schema:
    """The schema that a text of `encode_schema` says."""
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
        )
    return CorruptionError(
        f"{name} is damaged at byte 0: its checksum does not hold",
        detail="it names the files of one tick; the log is not touched by this",
        hint="`headwater rebuild` makes the views anew from the log",
        file=name,
        offset=0,
    )
