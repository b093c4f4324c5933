"""Redis as a target: a hash, a string or a sorted-set member for each row, written in one step with the checkpoint.

Guarantee: exactly once, within the durability of Redis itself. A change of up to 10,000 rows and the checkpoint
(`headwater:position:<sink>`) are one MULTI and EXEC, of which no client sees a part. The checkpoint is watched and compared
first, so that a repeated tick or a second process changes nothing. A larger change is written in several such steps. The
first marks the checkpoint as incomplete, and only the last advances it: after a crash in between, the contents are compared
with the view and the difference is written. If Redis loses the last second after a crash of its own, rows and checkpoint go
back together, and the sink continues from there.

Only names that begin with the prefix are touched, and of these only values of the type of the rows: a row whose name belongs
to a value of another type is rejected. The target is one server, or one hash slot of a cluster (a prefix such as `{sink}:`).
Only modules of this package import redis-py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NoReturn, Self

import pyarrow as pa
import pyarrow.compute as pc
import redis
from redis import exceptions
from redis.exceptions import RedisError

from headwater.core.errors import UsageError
from headwater.core.hashing import Mask, hash_rows
from headwater.sinks.base.blue_green import Version
from headwater.sinks.base.read_ahead import ahead
from headwater.sinks.base.sink_setup import SinkSetup, names
from headwater.sinks.base.target import (
    CheckpointConflictError,
    RefusedRow,
    RowsRefusedError,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetDownError,
    TargetShape,
)
from headwater.sinks.redis import existing_names
from headwater.sinks.redis.encoding import NAME, HashForm, KeyNames, RowEncoding, StringForm, ZsetForm
from headwater.sinks.redis.redis_protocol import Wire, command, tokens
from headwater.sinks.redis.versions import RedisVersions, mark_of, position_of

As = Literal["hash", "string", "zset"]

ROWS_AT_ONCE = 10_000
"""Maximum number of rows written in one step, which blocks the server for some tens of milliseconds."""
ROWS_OF_A_PART = 2_000
"""Number of rows in each step of a larger change."""
_SCAN_COUNT = 2_000
_PASSING = (
    "LOADING",
    "READONLY",
    "OOM",
    "MISCONF",
    "BUSY",
    "MASTERDOWN",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
)
"""Prefixes of error messages that are transient."""


Commands = tuple[int, bytes | pa.Buffer]
"""The number of commands and their bytes."""


class RedisTarget:
    """Names under a prefix, which is `<sink>:` unless given.

    `as_` is the type of a row. For a sorted set `score` is the column to sort by, and `member` are the columns of the key
    that name a member (the last one unless given); the other columns of the key name the set.
    """

    guarantee: ClassVar[str] = (
        "exactly once, as far as Redis persists: rows and checkpoint are written atomically"
    )

    def __init__(
        self,
        url: str,
        *,
        as_: As = "hash",
        prefix: str | None = None,
        score: str | None = None,
        member: Sequence[str] = (),
        version: Version | None = None,
    ) -> None:
        if as_ not in ("hash", "string", "zset"):
            raise UsageError(
                f"as must be 'hash', 'string' or 'zset', not {as_!r}",
                hint="write as = 'hash', which stores each row as a hash",
                option="as",
                value=as_,
            )
        if (as_ == "zset") != (score is not None):
            raise UsageError(
                "as = 'zset' requires score, and score requires as = 'zset'",
                hint="write as = 'zset' and score = '<column>', or neither",
                option="score",
            )
        self._url = url
        self.place = f"{as_} {prefix} {score} {', '.join(member)}"
        self._as = as_
        self._prefix = prefix
        self._score = score
        self._member = tuple(member)
        self._version = version
        self._mark = mark_of(version)
        self._wire: Wire | None = None
        self._shape: TargetShape | None = None
        self._form: RowEncoding | None = None
        self._names = KeyNames("", ())
        self._unreadable = b""

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        options = setup.options
        return cls(
            options["url"],
            as_=options.get("as", "hash"),
            prefix=options.get("prefix"),
            score=options.get("score"),
            member=names(options.get("member")),
        )

    @property
    def key(self) -> tuple[str, ...]:
        """The name; for a sorted set, name and member."""
        return self._encoding.key

    def prepare(self, shape: TargetShape) -> None:
        """Choose the names of rows, and check that the server answers."""
        self._shape = shape
        if shape.mode != "upsert":
            raise SinkError(
                f"sink {shape.sink!r} into REDIS needs a key, from which the names of rows are made",
                hint="declare a key, as in WITH (key = '...')",
                sink=shape.sink,
                reason="no-key",
            )
        prefix = f"{shape.sink}:" if self._prefix is None else self._prefix
        if self._as == "hash":
            self._names = KeyNames(prefix, shape.key)
            self._form = HashForm(self._names, shape.schema)
        elif self._as == "string":
            self._names = KeyNames(prefix, shape.key)
            self._form = StringForm(self._names)
        else:
            assert self._score is not None
            member = self._member or shape.key[-1:]
            _check_columns(shape, (*member, self._score))
            self._names = KeyNames(prefix, [name for name in shape.key if name not in member])
            self._form = ZsetForm(self._names, member, self._score, shape.schema)
            if not set(member) <= set(shape.key):
                raise UsageError(
                    f"member must name columns of the key, which is {', '.join(shape.key)}",
                    hint="name columns of the key as member, or omit member",
                    option="member",
                )
        if not prefix.strip(":"):
            raise UsageError(
                "prefix must not be empty: an empty prefix would match every key in Redis",
                hint="write a prefix, such as 'cache:'",
                option="prefix",
            )
        with self._talking() as wire:
            wire.ask(b"PING")

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return names and texts."""
        return self._encoding.stored_form(rows)

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint stored in Redis."""
        with self._talking() as wire:
            text = wire.ask(b"GET", self._position)
        checkpoint = SinkCheckpoint.parse(text) if text is not None else None
        self._unreadable = text if text is not None and checkpoint is None else b""
        return checkpoint

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Apply the change in one transaction, or in several; see `Target`."""
        form = self._encoding
        change = self._marked(change)
        refused = form.refused(change.upserts)
        if refused:
            raise self._refused(refused)
        expected = self._unreadable or None if before is None else before.text().encode()
        marked = after.under_way().text().encode()
        end = after.text().encode()
        with self._talking() as wire:
            if len(change) <= ROWS_AT_ONCE:
                self._watch(wire, expected)
                self._write(wire, self._commands(wire, change), end, marked)
                return
            existing, ours = (
                self._existing(wire, change.upserts),
                existing_names.ours(wire, change.deletes, self._encoding.kind),
            )
            self._watch(wire, expected)
            self._write(wire, (0, b""), marked, marked)
            for part in self._parts(change, existing, ours):
                self._watch(wire, marked)
                self._write(wire, part, marked, marked)
            self._watch(wire, marked)
            self._write(wire, (0, b""), end, marked)

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows under the prefix, page by page."""
        return ahead(self._pages())

    def _pages(self) -> Iterator[pa.RecordBatch]:
        form = self._encoding
        pattern = self._mark + self._names.pattern
        cursor, seen = b"0", set[int]()
        while True:
            with self._talking() as wire:
                words = b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _SCAN_COUNT, b"TYPE", form.kind
                found = tokens(wire.replies(command(*words)))
                cursor = found[1].as_py()
                names = _unseen(found.slice(3), self._position, seen)
                pages = list(form.read(wire, names)) if len(names) else []
            yield from (self._unmarked(page) for page in pages if page.num_rows)
            if cursor == b"0":
                return

    def versions(self) -> RedisVersions:
        """See `headwater.sinks.base.blue_green`."""
        return RedisVersions(
            self._declared, self._encoding.kind, self._names.pattern, self._talking, self._version_target
        )

    def _version_target(self, version: Version) -> RedisTarget:
        return RedisTarget(
            self._url,
            as_=self._as,
            prefix=self._prefix,
            score=self._score,
            member=self._member,
            version=version,
        )

    def close(self) -> None:
        """Close the connection."""
        if self._wire is not None:
            with contextlib.suppress(RedisError, OSError):
                self._wire.close()
            self._wire = None

    # --- names of a version ----------------------------------------------------------------------------------------

    def _marked(self, change: TargetChange) -> TargetChange:
        """Return a change with the names of this version: stored rows have the names of the active version."""
        if not self._mark:
            return change
        deletes, upserts = (_renamed(rows, self._mark, 0) for rows in (change.deletes, change.upserts))
        return TargetChange.of_keys(deletes, upserts)

    def _unmarked(self, page: pa.RecordBatch) -> pa.RecordBatch:
        return _renamed(page, b"", len(self._mark)) if self._mark else page

    # --- writing ---------------------------------------------------------------------------------------------------

    def _watch(self, wire: Wire, expected: bytes | None) -> None:
        """Begin a transaction: EXEC does nothing unless the checkpoint still is the expected one."""
        wire.ask(b"WATCH", self._position)
        found = wire.ask(b"GET", self._position)
        if found != expected:
            wire.ask(b"UNWATCH")
            raise self._moved(SinkCheckpoint.parse(found) if found is not None else None)

    def _commands(self, wire: Wire, change: TargetChange) -> Commands:
        existing, ours = (
            self._existing(wire, change.upserts),
            existing_names.ours(wire, change.deletes, self._encoding.kind),
        )
        deletes, gone = self._encoding.deletes(change.deletes.filter(pa.array(ours)))
        upserts, put = self._encoding.upserts(change.upserts, existing)
        return deletes + upserts, b"".join((memoryview(gone), memoryview(put)))

    def _parts(self, change: TargetChange, existing: Mask, ours: Mask) -> Iterator[Commands]:
        """Yield a large change in small parts, deletes first."""
        form = self._encoding
        deletes = change.deletes.filter(pa.array(ours))
        for start in range(0, deletes.num_rows, ROWS_OF_A_PART):
            yield form.deletes(deletes.slice(start, ROWS_OF_A_PART))
        for start in range(0, change.upserts.num_rows, ROWS_OF_A_PART):
            end = start + ROWS_OF_A_PART
            yield form.upserts(change.upserts.slice(start, ROWS_OF_A_PART), existing[start:end])

    def _write(self, wire: Wire, commands: Commands, end: bytes, marked: bytes) -> None:
        """Execute one transaction with the commands and the checkpoint."""
        count, body = commands
        count += 1
        wire.send(command(b"MULTI"), body, command(b"SET", self._position, end), command(b"EXEC"))
        queued = 1 + count
        data = wire.lines(queued + 1)
        reply = data.split(b"\r\n", queued + 1)[queued]
        if reply == b"*-1":
            raise self._moved(None)
        if reply.startswith(b"-"):
            raise exceptions.ResponseError(
                next(line for line in data.split(b"\r\n") if line[:1] == b"-")[1:].decode()
            )
        data = wire.lines(queued + 1 + count, data)
        if b"\n-" in data:
            # EXEC continues after an error. A name has changed its type since it was checked: reconcile.
            wire.ask(b"SET", self._position, marked)
            raise self._moved(SinkCheckpoint.parse(marked))

    def _existing(self, wire: Wire, rows: pa.RecordBatch) -> Mask:
        """Return which rows have a name that exists; RowsRefusedError if a name has another type."""
        found, refused = existing_names.existing(wire, rows, self._encoding.kind)
        if refused:
            wire.ask(b"UNWATCH")
            raise self._refused(refused)
        return found

    # --- connection ------------------------------------------------------------------------------------------------

    @property
    def _declared(self) -> TargetShape:
        if self._shape is None:
            raise ValueError("prepare was not called")
        return self._shape

    @property
    def _encoding(self) -> RowEncoding:
        if self._form is None:
            raise ValueError("prepare was not called")
        return self._form

    @property
    def _position(self) -> bytes:
        return position_of(self._declared.sink, self._version)

    @contextlib.contextmanager
    def _talking(self) -> Iterator[Wire]:
        """Yield the connection, opened if needed, with the driver's errors converted to those of `Target`."""
        try:
            if self._wire is None:
                self._wire = Wire(_connect(self._url, self._declared.sink))
            yield self._wire
        except (RedisError, OSError) as error:
            self.close()
            _raise(error, self._declared)

    def _refused(self, refused: list[RefusedRow]) -> RowsRefusedError:
        return RowsRefusedError(
            f"Redis cannot store {len(refused)} rows of view {self._declared.view!r}: {refused[0].reason}",
            refused=sorted(refused, key=lambda one: one.index),
            sink=self._declared.sink,
        )

    def _moved(self, found: SinkCheckpoint | None) -> CheckpointConflictError:
        return CheckpointConflictError(
            f"the checkpoint of sink {self._declared.sink!r} in Redis has changed: another process wrote to the target, or a "
            "backup was restored",
            hint="no action is needed: the sink resumes from the checkpoint of the target",
            sink=self._declared.sink,
            found=found,
        )


def _check_columns(shape: TargetShape, names: Sequence[str]) -> None:
    for name in names:
        if name not in shape.schema.names:
            raise UsageError(
                f"view {shape.view!r} has no column {name!r}",
                hint=f"its columns are {', '.join(shape.schema.names)}",
                view=shape.view,
                column=name,
            )


def _renamed(rows: pa.RecordBatch, mark: bytes, less: int) -> pa.RecordBatch:
    """Return rows with the first `less` bytes of their names replaced by `mark`."""
    at = rows.schema.get_field_index(NAME)
    return rows.set_column(at, rows.schema.field(at), pc.binary_replace_slice(rows.column(at), 0, less, mark))


def _connect(url: str, sink: str) -> Any:
    try:
        pool = redis.ConnectionPool.from_url(
            url,
            decode_responses=False,
            protocol=2,
            socket_connect_timeout=10,
            socket_timeout=60,
            client_name=f"headwater-{sink}",
        )
    except ValueError as error:
        raise UsageError(
            f"the url of sink {sink!r} is not a valid Redis URL: {error}",
            hint="write redis://host:6379/0, or unix://...",
            sink=sink,
            option="url",
        ) from None
    connection: Any = pool.make_connection()
    connection.connect()
    return connection


def _unseen(names: pa.Array, position: bytes, seen: set[int]) -> pa.Array:
    """Return the names of rows that no earlier page had: SCAN may return a name twice."""
    names = names.filter(pc.not_equal(names, position))
    hashes = hash_rows([names], len(names)).tolist()
    if seen.isdisjoint(hashes) and len(set(hashes)) == len(hashes):
        seen.update(hashes)
        return names
    kept = []
    for at, number in enumerate(hashes):
        if number not in seen:
            seen.add(number)
            kept.append(at)
    return names.take(pa.array(kept, pa.int64()))


def _raise(error: Exception, shape: TargetShape) -> NoReturn:
    answered = isinstance(error, RedisError) and not isinstance(
        error, exceptions.ConnectionError | exceptions.TimeoutError
    )
    if answered and not str(error).startswith(_PASSING):
        raise SinkError(
            f"the Redis server of sink {shape.sink!r} reports an error: {error}",
            hint="check that the user may run scripts and write keys with the prefix",
            sink=shape.sink,
        ) from error
    raise TargetDownError(
        f"the Redis server of sink {shape.sink!r} is unavailable: {error}",
        hint="the sink retries; check that the server runs and that the url is right",
        sink=shape.sink,
    ) from error
