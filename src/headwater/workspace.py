"""A workspace: a folder with topics in it, and everything a program does with them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog.connectors import ALERT, DELETION, SINK, SOURCE
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.arguments import span_us, tick_token, whole_number
from headwater.core.arguments import text as text_of
from headwater.core.clock import Clock, SystemClock
from headwater.core.errors import UsageError
from headwater.core.positions import Receipt
from headwater.core.settings import DURABILITIES, Durability, LogSettings
from headwater.core.storage import Storage
from headwater.core.types import normalize_schema
from headwater.engine.row_errors.rejected_row_counts import since
from headwater.events.workspace_events import EventSourcing
from headwater.execution import create as create_topic
from headwater.execution import execute
from headwater.log.append_rows import Expect, expectations, make_producer
from headwater.log.lag import LagReport, lag_report
from headwater.log.protocol import CursorInfo, Finding, Log, MaintenanceReport
from headwater.log.topic import Topic
from headwater.log.transaction import Transaction, append_moving
from headwater.queues.workspace_queues import Sharing
from headwater.sql.parser import parse, parse_columns
from headwater.sql.statements import QueryText, TopicColumns

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import DataFrame, SparkSession

    from headwater.connectors.dead_letters.dead_letters import Dead
    from headwater.connectors.handles import SinkHandle, SourceHandle
    from headwater.connectors.manage.queue_webhooks import Poster
    from headwater.connectors.supervisor import Supervisor
    from headwater.deletion import Deletion, Deletions
    from headwater.log.cursor import Consumer
    from headwater.privacy.subject_keys import Wrapping
    from headwater.serving.subscribe import Subscription
    from headwater.sinks.base.sink_verify import SinkCheck
    from headwater.verify.verification import ViewCheck
    from headwater.views.runner import Runner, RunReport
    from headwater.views.standing_queries import StandingQueries
    from headwater.views.view_handle import View
    from headwater.views.view_manager import Views

OUTSIDE_TIMEOUT_S = 60.0
"""How long `run` tries to reach what is outside."""
MEMORY = "memory:"
"""In place of a path: a workspace that is gone when it is closed, for tests."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """What reading and checking everything found: `ok`, or what is wrong and where."""

    differences: tuple[Finding, ...]
    """Bytes that are damaged, views that differ from their SELECT, and views and sources that are stopped."""
    bytes_checked: int
    views: tuple[ViewCheck, ...] = ()
    """What was found of each view, by name; none if only topics were asked for."""
    sinks: tuple[SinkCheck, ...] = ()
    """What was found of each sink."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.differences


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    durability: Durability | None = None,
    settings: LogSettings | None = None,
    clock: Clock | None = None,
    spark: SparkSession | None = None,
    keep_ticks: int | None = None,
    keys: str | os.PathLike[str] | None = None,
    kms: Wrapping | None = None,
) -> Workspace:
    """Open the workspace in a folder, made if it is not there; `"memory:"` is one that is kept nowhere.

    `durability` says when an append is acknowledged: 'fsync' (the default, safe against loss of power), 'group'
    (as safe, concurrent appends share a sync) or 'os' (safe against the death of a process alone); left out, it
    is as the workspace was made. The other `settings` belong to the process that opens, not to the workspace:
    nothing of them is kept, and each process that has it open may have its own. `spark` is a session to run views
    in; without one, Spark is started when a view first needs it. `keep_ticks` is how many past ticks an engine of
    this process leaves to be read at once (100 if not said); older ones are computed from the log when they are asked for.

    `keys` is the folder of the keys to private columns: beside the workspace if it is not said here or by HEADWATER_KEYS,
    and never in it. `kms` wraps their master key: an object with `wrap(bytes)` and `unwrap(bytes)`.
    """
    clock = clock or SystemClock()
    if durability is not None:
        if durability not in DURABILITIES:
            raise UsageError(f"durability is one of {', '.join(DURABILITIES)}, not {durability!r}")
        settings = dataclasses.replace(settings or LogSettings(), durability=durability)
    kept = None if keep_ticks is None else whole_number(keep_ticks, "keep_ticks", least=1)
    place = _place(path)
    if place == MEMORY:
        from headwater.log.memory import MemoryLog

        memory = MemoryLog(clock)
        return Workspace(memory, memory.clock, None, spark, kept)
    from headwater.log.embedded.embedded_log import EmbeddedLog

    folder = Path(place)
    _refuse_file(folder)
    kept_keys = None if keys is None else Path(_place(keys))
    log = EmbeddedLog.open(folder, settings=settings, clock=clock, create=create, keys=kept_keys, kms=kms)
    made = Workspace(log, log.clock, folder, spark, kept)
    try:
        made._resume()
    except BaseException:
        made.close()
        raise
    log.start_upkeep()
    return made


def _place(path: Any) -> str:
    try:
        place = os.fspath(path)
    except TypeError:
        place = None
    if not isinstance(place, str) or place in ("", ":memory:"):
        raise UsageError(
            f"a workspace is opened by the path of its folder, not {path!r}",
            hint=f'hw.open("shop"), or hw.open("{MEMORY}") for one that is kept nowhere',
        )
    return place


def _refuse_file(folder: Path) -> None:
    """A folder can be neither where a file is nor below one."""
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), None)
    if nearest is not None and not nearest.is_dir():
        raise UsageError(
            f"there can be no workspace at {folder}: {nearest} is a file", hint="name a folder, or a new one"
        )


class Workspace(EventSourcing, Sharing):
    """Made by `hw.open`; a context manager that closes it."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        path: Path | None,
        spark: SparkSession | None = None,
        keep_ticks: int | None = None,
    ) -> None:
        EventSourcing.__init__(self, log, clock, path)
        Sharing.__init__(self, log, clock)
        self._spark = spark
        self._keep_ticks = keep_ticks
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._made: Views | None = None
        self._connected: Supervisor | None = None

    def post(self, queue: str, url: str, **options: Any) -> Poster:
        """Have the messages of a queue posted to a web server, in threads of this process, until `stop()`: signed with `secret`, each
        acknowledged when it is answered with 2xx, else again later, and dead after the queue's `deliveries`. See `Poster`, and
        `PostOptions` for the options."""
        from headwater.connectors.manage.queue_webhooks import Poster, PostOptions

        made = Poster(self.queue(queue), url, PostOptions.given(options))
        self._queues.workers.add(made)
        return made

    @property
    def _views(self) -> Views:
        if self._made is None:
            from headwater.views.view_manager import Views

            if self.path is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="headwater-")
            root = self._scratch.name if self._scratch is not None else self.path
            assert root is not None
            self._made = Views(self.log, Storage(root), self._clock, self._spark, self._keep_ticks)
        return self._made

    @property
    def _outside(self) -> Supervisor:
        if self._connected is None:
            from headwater.connectors.supervisor import Supervisor

            views = self._views  # makes the folder of a workspace that has none
            root = views.store.storage.root
            self._connected = Supervisor(
                self.log,
                self._clock,
                root,
                lambda: self._views,
                self._figures,
                lambda: self._queues,
            )
            self._connected.erasure.excise = self._deletions.excise_copies
        return self._connected

    def __repr__(self) -> str:
        return f"<Workspace {self.path or MEMORY}>"

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sql(self, text: str) -> pa.Table | None:
        """Run one or more statements; all are read before the first is run. The result of the last: a table or None."""
        result = None
        for statement in parse(text_of(text, "a statement", hint='ws.sql("SHOW TOPICS")')):
            result = execute(self.log, statement, self._clock, lambda: self._views, lambda: self._outside)
        return result

    def view(self, name: str) -> View:
        """The view of that name."""
        from headwater.views.view_handle import View

        return View(self._views, text_of(name, "the name of a view", hint='ws.view("revenue")'))

    def standing(self, name: str) -> StandingQueries:
        """The stored queries of CREATE STANDING QUERY, to be added to, removed from and listed; their matches are the view of
        that name."""
        from headwater.views.standing_queries import StandingQueries

        known = text_of(name, "the name of a standing query", hint='ws.standing("news")')
        return StandingQueries(self.log, self._clock, known)

    def source(self, name: str) -> SourceHandle:
        """The source of that name."""
        from headwater.connectors.handles import SourceHandle

        return SourceHandle(self._outside, text_of(name, "the name of a source", hint='ws.source("shop")'))

    def sink(self, name: str) -> SinkHandle:
        """The sink of that name."""
        from headwater.connectors.handles import SinkHandle

        return SinkHandle(self._outside, text_of(name, "the name of a sink", hint='ws.sink("cache")'))

    def dead(self) -> Dead:
        """The rows that views and sinks with on_error = 'divert' have refused, and messages that queues have given up: to be listed,
        edited, dropped and replayed."""
        return self._outside.dead()

    def sink_function(self, name: str, fn: Callable[..., Any]) -> None:
        """Declare a function for sinks of kind PYTHON: `fn(change, key)` gets a pyarrow Table of a change and a key that tells
        this call from every other, also when it is repeated. Code lives in the process: the one that runs the sink declares it."""
        self._outside.sinks.declared.functions[text_of(name, "the name of a function")] = fn

    @property
    def _deletions(self) -> Deletions:
        from headwater.deletion import Deletions

        return Deletions(self.log, self._clock, lambda: self._views, lambda: self._outside, self.path)

    def _resume(self) -> None:
        """Complete deletions that a crash left half done, and those that an older copy of this workspace knows nothing of.
        `hw.open` does so before it returns."""
        if self.log.entries(DELETION) or self.log.keys.forgotten():
            self._deletions.resume()

    def forget(self, subject: int | str, *, by: str | None = None, reason: str | None = None) -> Deletion:
        """Forget a subject: destroy the key to everything that is PRIVATE BY it. Private values are unreadable when this
        returns, and gone from views and what follows them from the next tick on; `_forgotten` has a record of it.

        `by` is who does it, the user of the operating system if it is left out. What comes back tells every place that held
        something and what has become of it; `deletions()` tells it again later.
        """
        return self._deletions.forget(subject, by=by, reason=reason)

    def excise(self, topic: str, where: str, *, by: str | None = None, reason: str | None = None) -> Deletion:
        """Remove the records of a topic that a condition in SQL finds, from the log itself; their offsets stay gaps. Views
        are as if they had never been there from the next tick on; `_excised` has a record of it."""
        return self._deletions.excise(topic, where, by=by, reason=reason)

    def deletions(self) -> list[Deletion]:
        """Everything that was forgotten or excised, in order, each with the places that it is followed to."""
        return self._deletions.all()

    def rotate_keys(self) -> int:
        """Wrap the keys to private columns by a new master key, and destroy the one before; how many keys there are."""
        return self.log.keys.rotate()

    def run(self, *, tick_rows: int | None = None) -> RunReport:
        """Bring every view up to what the log holds now, then say what was done.

        With sources the log first takes in what is committed there by now, and with sinks each is brought level in the end; alerts are looked at
        once, unless an engine does.
        `tick_rows` bounds the records of a tick; an atomic append stays whole. Beside a running engine this waits
        until that one has got there.
        """
        rows, before = _tick_rows(tick_rows), self._outside.rejected()
        captured = -self._outside.captured_rows()
        if self.log.entries(SOURCE):
            self._outside.sources.catch_up(OUTSIDE_TIMEOUT_S)
        captured += self._outside.captured_rows()
        report = self._views.run(rows)
        if self.log.entries(SINK):
            excised = self._outside.erasure.follow()  # first: what only grows stops where rows are gone
            self._outside.sinks.catch_up(OUTSIDE_TIMEOUT_S * 1_000)
            while (
                self._outside.erasure.follow() or excised
            ):  # of copies, which views and other sinks may read
                excised = False
                report = report.and_then(self._views.run(rows))
                self._outside.sinks.catch_up(OUTSIDE_TIMEOUT_S * 1_000)
        if self.log.entries(ALERT):
            self._outside.look_at_alerts()
        rejected = since(before, self._outside.rejected())
        return dataclasses.replace(report, rejected=rejected, captured=captured)

    def start(self, *, every: str | timedelta = "auto", tick_rows: int | None = None) -> Runner:
        """Keep every view up to date in the background, until `stop()`.

        `every` is the time from one tick to the next, such as '200 ms': longer is more throughput. 'auto' (the default)
        is at once when something is new, with short rests while little is. A tick takes all that is new, at most
        `tick_rows` records: under load ticks grow, and one that leaves something is followed at once.
        """
        from headwater.views.pacing import pace_of

        return self._views.start(pace_of(every), _tick_rows(tick_rows), beside=self._outside)

    def query(
        self,
        text: str,
        *,
        as_of: int | str | datetime | None = None,
        after: Receipt | str | int | None = None,
        timeout: float = 30,
    ) -> pa.Table:
        """The answer to a SELECT over views and topics, all as they are at one tick.

        `as_of` is an earlier tick, by its number or its token, or a time: the last tick committed at or before it. `after` is the receipt of an
        append that the answer must have seen: it is waited for, or, if no engine runs, brought about. With a source it
        may be a position in that: an LSN of Postgres that was read after a commit.
        """
        query = text_of(text, "a query", hint='ws.query("SELECT * FROM revenue")')
        if isinstance(after, (str, int)):
            after = self._outside.receipt(after, timeout)
        return self._views.reads.query(query, as_of=as_of, after=after, timeout_ms=timeout * 1000)

    def subscribe(
        self,
        text: str,
        *,
        since: int | str | None = None,
        timeout: float | None = None,
        rows_max: int | None = None,
    ) -> Subscription:
        """Follow a SELECT over views and topics that could be a view: its rows at the newest tick, then every tick's changes.

        An iterator of `Change(tick, rows, snapshot)` that waits for more; it ends at `close()`, or after `timeout` seconds
        of silence. It makes no ticks: `ws.start()`, here or elsewhere, does. Its `token` is where to go on from:
        with `since=token` only later changes are given. `snapshot` says that `rows` are all there are and what came
        before is void: at the beginning, and when it cannot go on, because ticks between are no longer kept, a view
        was built anew, or an older copy of the workspace was put back. What joins and aggregates need is held in memory, `rows_max` rows at most.
        """
        from headwater.log.reader import wait_ms
        from headwater.serving.subscribe import ROWS_MAX

        hint = 'ws.subscribe("SELECT * FROM revenue")'
        found = list(parse(text_of(text, "a query", hint=hint)))
        if len(found) != 1 or not isinstance(found[0], QueryText):
            raise UsageError("a subscription is to one SELECT", hint=hint)
        return self._views.reads.subscribe(
            found[0],
            None if since is None else tick_token(since, "since"),
            wait_ms(timeout),
            ROWS_MAX if rows_max is None else whole_number(rows_max, "rows_max", least=1),
        )

    def function(
        self, name: str, fn: Callable[..., Any], *, returns: Any, per_row: bool = False, version: Any = 1
    ) -> None:
        """Declare a scalar function for views and queries: deterministic, a value for each row.

        `fn` gets a pyarrow Array per argument and returns as many values, as an Array or what `pa.array` takes; with
        `per_row` it gets and returns single Python values. `returns` is a type as in SQL. Code lives in the process:
        every process that runs views declares it. Another `version` or type builds the views that use it anew.
        """
        self._views.declarations.declare(name, lambda d: d.function(name, fn, returns, per_row, version))

    def table_function(
        self, name: str, fn: Callable[..., Any], *, returns: Any, per_row: bool = False, version: Any = 1
    ) -> None:
        """Declare a function for LATERAL: deterministic, a list of rows for each row. `returns` are its columns.

        `fn` gets a pyarrow Array per argument and returns a list of rows for each of their values, as an Array or what
        `pa.array` takes; with `per_row` it gets single Python values and yields rows, as tuples or dicts.
        """
        self._views.declarations.declare(
            name, lambda d: d.table_function(name, fn, returns, per_row, version)
        )

    def aggregate(
        self,
        name: str,
        *,
        zero: Any,
        add: Callable[..., Any],
        merge: Callable[[Any, Any], Any],
        remove: Callable[..., Any] | None = None,
        result: Callable[[Any], Any] | None = None,
        returns: Any,
        state: Any = None,
        version: Any = 1,
    ) -> None:
        """Declare an aggregate function: deterministic, and independent of the order of rows.

        `add(state, *arrays)` gives the state with some rows of a group in it, a pyarrow Array per argument;
        `merge(a, b)` that of two states' rows; `remove(state, *arrays)` takes rows back. Without `remove`, groups that
        lose rows are computed again. `result(state)` is the value shown, the state itself without it. `state` is the
        type of a state as in SQL (that of `returns` if left out), and `zero` the state of no rows.
        """
        parts = {"zero": zero, "add": add, "merge": merge, "remove": remove, "result": result}
        self._views.declarations.declare(name, lambda d: d.aggregate(name, parts, state, returns, version))

    def fold(
        self,
        name: str,
        *,
        topic: str,
        key: str | Sequence[str],
        zero: Any,
        step: Callable[[Any, Any], Any],
        returns: Any,
        per_row: bool = True,
        version: Any = 1,
    ) -> View:
        """Declare a view of every key's current state: `step(state, event)` over the key's records in their order.

        The topic is partitioned by the key, or has one partition. `returns` are the columns of a state, which come after
        the key's in the view; `zero`, and what `step` returns, is a dict or a tuple of them. Without `per_row`, `step`
        gets a pyarrow RecordBatch of a key's next records at once.
        """
        text_of(topic, "the name of a topic")
        columns = _key(key)
        if not columns:
            raise UsageError(f"fold {name!r} has no key", hint='key="account"')
        self._views.declarations.declare(
            name, lambda d: d.fold(name, topic, columns, zero, step, returns, per_row, version)
        )
        return self.view(name)

    def spark(self, name: str) -> DataFrame:
        """A view or topic at the newest tick as a Spark DataFrame."""
        return self._views.reads.frame(text_of(name, "the name of a view", hint='ws.spark("revenue")'))

    def topic(
        self,
        name: str,
        schema: pa.Schema | str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        time: str | None = None,
        lateness: str | timedelta | None = None,
        private: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Topic:
        """The topic of that name; with a `schema`, made if it is not there, as CREATE TOPIC makes it.

        `schema` is a pyarrow schema or the columns as in CREATE TOPIC, `options` are those of WITH: partitions,
        partition_by, retention and so on. `private` says of columns that are to be encrypted whose key it is, by the column
        that names the subject: {"email": "user"}. TopicExistsError, with the difference, if it is there and differs.
        """
        text_of(name, "the name of a topic", hint='ws.topic("clicks")')
        if schema is None:
            if options or any(given is not None for given in (key, time, lateness, private)):
                raise UsageError(
                    f"topic {name!r} is given options but no schema",
                    hint="give its columns to make it: schema='id BIGINT, at TIMESTAMP'",
                )
        else:
            columns = _columns(name, schema, key, time)
            create_topic(self.log, _definition(name, columns, lateness, private, options))
        return Topic(self.log, name, self._clock)

    def _newest_tick(self) -> int:
        newest = self._views.store.latest_whole()
        return 0 if newest is None else newest.tick

    def topics(self) -> list[Topic]:
        """Every topic, by name."""
        return [Topic(self.log, name, self._clock) for name in sorted(self.log.topics())]

    def append(
        self,
        rows: Mapping[str, Any],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        epoch: int | None = None,
        expect: Mapping[str, Expect] | None = None,
        commit: Consumer | None = None,
    ) -> Receipt:
        """Append to several topics at once: readers see all of it or none. Options as for `Topic.append`.

        `commit` is a cursor or a member of a group whose position is moved in the same commit, so that a loop which
        reads, transforms and appends leaves the same output wherever it is killed.
        """
        if not isinstance(rows, Mapping):
            raise UsageError(
                "ws.append takes the rows of each topic", hint='ws.append({"orders": rows, "payments": rows})'
            )
        return append_moving(
            self.log,
            dict(rows),
            producer=make_producer(producer, sequence, epoch),
            expect=expectations(expect),
            commit=commit,
        )

    def transaction(
        self,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        epoch: int | None = None,
        expect: Mapping[str, Expect] | None = None,
        commit: Consumer | None = None,
    ) -> Transaction:
        """An atomic append in steps, which may be larger than memory: `with ws.transaction() as tx: tx.append(...)`.

        Committed at the end of the block, with its receipt in `tx.receipt`; given up if an exception leaves it.
        """
        return Transaction(
            self.log,
            producer=make_producer(producer, sequence, epoch),
            expect=expectations(expect),
            commit=commit,
        )

    def cursors(self) -> list[CursorInfo]:
        """Every cursor as it is stored; a group's position is the cursor of its name."""
        return sorted(self.log.cursors(), key=lambda c: (c.topic, c.name))

    def lag(self) -> LagReport:
        """How far each cursor is behind, when it falls off the tail, and when the disk is full, at present rates."""
        return lag_report(self.log, self._clock, shutil.disk_usage(self.path).free if self.path else None)

    def metrics(self) -> str:
        """Figures of this moment in Prometheus' text format: rows, lags, ticks by phase, watermarks, followers, disk."""
        from headwater.metrics import exposition

        return exposition(self._figures())

    def _figures(self) -> Iterable[Metric]:
        from headwater.metrics import CollectedMetrics

        free = shutil.disk_usage(self.path).free if self.path else None
        return CollectedMetrics(self.log, self._clock, self._views, self._outside, free).collect()

    def maintain(self, *, force: bool = True, override_holds: bool = False) -> MaintenanceReport:
        """Seal, apply retention and compact, now. `override_holds` removes even what holding cursors have not read.

        `waiting` of the report names the views for which records stay that retention would remove, and what to do. `failed`
        names what could not be done, such as the sealing of a damaged segment; all else was done.
        """
        if not self.log.entries("view"):
            return self.log.maintain(force=force, override_holds=override_holds)
        from headwater.engine.collections.retention_holds import failure_of, waiting

        failed = failure_of(self._views.let_go)
        report = self.log.maintain(force=force, override_holds=override_holds)
        left = waiting(self.log, self._views.store.latest_whole(), self._clock)
        return dataclasses.replace(report, waiting=left, failed=(*failed, *report.failed))

    def verify(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        repair: bool = False,
        cheap: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Verification:
        """Read everything, or one topic or some, and check it against its checksums; then, unless topics were named, hold
        each view against what its SELECT gives in batch, and each sink against its view at the tick where it stands. A view
        that is stopped does not hold what it should, and neither does a topic whose source, or whose table of it, is stopped.

        `repair` brings sinks level that differ. `cheap` leaves views alone, and compares sinks by the checksums that are kept
        up to date with every tick. `progress` is told the bytes checked so far.
        """
        if isinstance(topics, str):
            topics = [topics]
        for name in topics or ():
            self.log.topic(text_of(name, "the name of a topic"))
        found: list[Finding] = []
        views: list[ViewCheck] = []
        checked = 0
        for step in self.log.verify(topics):
            if isinstance(step, Finding):
                found.append(step)
            else:
                checked = step
                if progress is not None:
                    progress(checked)
        if topics is None and not cheap and self.log.entries("view"):
            views = self._views.reports.verify()
            found += [finding for view in views if (finding := view.finding) is not None]
        if topics is None and self.log.entries(SOURCE):
            stopped = self._outside.sources.stopped()
            found += [Finding(what, None, None, None, f"stopped: {why}") for what, why in stopped.items()]
        sinks: list[SinkCheck] = []
        if topics is None and self.log.entries(SINK):
            sinks = self._outside.sinks.verify(repair=repair, cheap=cheap)
            found += [sink.finding for sink in sinks if sink.ok is False]
        return Verification(tuple(found), checked, tuple(views), tuple(sinks))

    def close(self) -> None:
        """Release every handle. What was appended needs no close to be there."""
        self._close_queues()
        self._close_stores()
        if self._made is not None:
            self._made.close()
        if self._connected is not None:
            self._connected.close()
        self.log.close()
        if self._scratch is not None:
            self._scratch.cleanup()


def _tick_rows(rows: Any) -> int | None:
    return None if rows is None else whole_number(rows, "tick_rows", least=1)


def _columns(
    name: str, schema: pa.Schema | str, key: str | Sequence[str] | None, time: str | None
) -> TopicColumns:
    """The columns of a topic that is to be made, with the key and the time column that were said beside them."""
    if not isinstance(schema, (str, pa.Schema)):
        raise UsageError(
            f"the schema of topic {name!r} is a pyarrow schema or a text, not {schema!r}",
            hint="schema='id BIGINT, at TIMESTAMP', or pa.schema([('id', pa.int64())])",
        )
    columns = parse_columns(schema) if isinstance(schema, str) else TopicColumns(normalize_schema(schema))
    given_key = _key(key) or columns.key
    if time is not None:
        text_of(time, "time", hint="give the name of a column: time='at'")
    for what, given, declared in (("key", key, columns.key), ("time", time, columns.time)):
        if given is not None and declared:
            raise UsageError(f"the {what} of topic {name!r} is given twice: in the schema and as an option")
    return dataclasses.replace(columns, key=given_key, time=time or columns.time)


def _definition(
    name: str,
    columns: TopicColumns,
    lateness: str | timedelta | None,
    private: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> TopicDefinition:
    if lateness is not None and not columns.time:
        raise UsageError(
            f"topic {name!r} has a lateness but no time column", hint="time='at', lateness='10 minutes'"
        )
    if private is not None and not isinstance(private, Mapping):
        raise UsageError(
            f"private says of each private column whose value it is, not {private!r}",
            hint='private={"email": "user"}',
        )
    late = columns.lateness_us if lateness is None else span_us(lateness, "lateness")
    whose = {**columns.private, **(private or {})}
    key, time = columns.key, columns.time
    return define_topic(
        name, columns.schema, key=key, time=time, lateness=late, options=options, private=whose
    )


def _key(key: Any) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) else key
    if columns is None:
        return ()
    if not isinstance(columns, Sequence) or not all(isinstance(column, str) for column in columns):
        raise UsageError(
            f"key is the name of a column or a list of names, not {key!r}",
            hint="key='id', or key=['shop', 'id']",
        )
    return tuple(columns)
