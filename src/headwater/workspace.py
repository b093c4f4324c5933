"""The workspace: a folder with topics and views, and the object through which programs use them."""

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
from headwater.core.arguments import text as text_of
from headwater.core.arguments import tick_token, whole_number
from headwater.core.clock import Clock, SystemClock
from headwater.core.errors import UsageError
from headwater.core.positions import Receipt
from headwater.core.settings import DURABILITIES, Durability, LogSettings
from headwater.core.storage import Storage
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
from headwater.sql.parser import parse
from headwater.sql.statements import QueryText
from headwater.sql.topic_arguments import columns_of, definition_of, key_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import DataFrame, SparkSession

    from headwater.connectors.dead_letters.dead_letters import DeadLetters
    from headwater.connectors.handles import SinkHandle, SourceHandle
    from headwater.connectors.manage.queue_webhooks import Poster
    from headwater.connectors.supervisor import Supervisor
    from headwater.deletion import Deletion, Deletions
    from headwater.log.cursor import Consumer
    from headwater.privacy.subject_keys import Kms
    from headwater.serving.subscribe import Subscription
    from headwater.sinks.base.sink_verify import SinkCheck
    from headwater.verify.verification import ViewCheck
    from headwater.views.runner import Runner, RunReport
    from headwater.views.standing_queries import StandingQueries
    from headwater.views.view_handle import View
    from headwater.views.view_manager import Views

CONNECTORS_TIMEOUT_S = 60.0
"""Seconds that `run` tries to reach external systems."""
MEMORY = "memory:"
"""A path for a workspace in memory, which is gone when it is closed; for tests."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `Workspace.verify`."""

    differences: tuple[Finding, ...]
    """Damaged bytes, views that differ from their SELECT, sinks that differ from their view, and stopped views and sources."""
    bytes_checked: int
    views: tuple[ViewCheck, ...] = ()
    """The result for each view, by name; empty if only topics were verified."""
    sinks: tuple[SinkCheck, ...] = ()
    """The result for each sink."""

    @property
    def ok(self) -> bool:
        """Whether no difference was found."""
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
    kms: Kms | None = None,
) -> Workspace:
    """Open the workspace in a folder, created if it is missing; `"memory:"` is a workspace in memory, for tests.

    `durability` is when an append is acknowledged: 'fsync' (the default, safe against loss of power), 'group' (equally
    safe, concurrent appends share a sync) or 'os' (safe only against a crash of the process); left out, it is as the
    workspace was created. Other `settings` are those of this process and are not stored; other processes may open the
    workspace with other ones. `spark` is the session that views run in; without it, Spark is started when a view first
    needs it. `keep_ticks` is the number of past ticks that an engine of this process keeps readable (100 by default);
    older ones are recomputed from the log.

    `keys` is the folder of the keys to private columns, never inside the workspace: by default HEADWATER_KEYS, or a
    folder next to the workspace. `kms` wraps their master key: an object with `wrap(bytes)` and `unwrap(bytes)`.
    """
    clock = clock or SystemClock()
    if durability is not None:
        if durability not in DURABILITIES:
            raise UsageError(
                f"durability is one of {', '.join(DURABILITIES)}, not {durability!r}",
                argument="durability",
                value=durability,
            )
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
            f"the path of a workspace must be a folder, not {path!r}",
            hint=f'hw.open("shop"), or hw.open("{MEMORY}") for one in memory',
            reason="not-a-path",
        )
    return place


def _refuse_file(folder: Path) -> None:
    """Raise UsageError if the path of a folder is a file, or is below a file."""
    existing = next((place for place in (folder, *folder.parents) if place.exists()), None)
    if existing is not None and not existing.is_dir():
        raise UsageError(
            f"no workspace can be created at {folder}: {existing} is a file",
            hint="name a folder, or one that does not exist yet",
            file=str(existing),
        )


class Workspace(EventSourcing, Sharing):
    """A workspace, as `hw.open` returns it; a context manager that closes it."""

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
        """Post the messages of a queue to a web server, in threads of this process, until `stop()`. Requests are signed
        with `secret`. A message is acknowledged on a 2xx response, retried otherwise, and dead after the queue's
        `deliveries`. See `Poster`, and `PostOptions` for the options."""
        from headwater.connectors.manage.queue_webhooks import Poster, PostOptions

        made = Poster(self.queue(queue), url, PostOptions.from_mapping(options))
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
    def _supervisor(self) -> Supervisor:
        if self._connected is None:
            from headwater.connectors.supervisor import Supervisor

            views = self._views  # creates the folder of a workspace in memory
            root = views.store.storage.root
            self._connected = Supervisor(
                self.log,
                self._clock,
                root,
                lambda: self._views,
                self._collect_metrics,
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
        """Parse all of one or more statements, then run them in order. Returns the last result: a table or None."""
        result = None
        for statement in parse(text_of(text, "statement", hint='ws.sql("SHOW TOPICS")')):
            result = execute(self.log, statement, self._clock, lambda: self._views, lambda: self._supervisor)
        return result

    def view(self, name: str) -> View:
        """Return the view of that name."""
        from headwater.views.view_handle import View

        return View(self._views, text_of(name, "view", hint='ws.view("revenue")'))

    def standing(self, name: str) -> StandingQueries:
        """Return the stored queries of a CREATE STANDING QUERY, to add, remove and list; the view of that name has
        their matches."""
        from headwater.views.standing_queries import StandingQueries

        known = text_of(name, "standing query", hint='ws.standing("news")')
        return StandingQueries(self.log, self._clock, known)

    def source(self, name: str) -> SourceHandle:
        """Return the source of that name."""
        from headwater.connectors.handles import SourceHandle

        return SourceHandle(self._supervisor, text_of(name, "source", hint='ws.source("shop")'))

    def sink(self, name: str) -> SinkHandle:
        """Return the sink of that name."""
        from headwater.connectors.handles import SinkHandle

        return SinkHandle(self._supervisor, text_of(name, "sink", hint='ws.sink("cache")'))

    def dead(self) -> DeadLetters:
        """Return the dead letters, to list, edit, drop and replay: rows that views and sinks with on_error = 'divert'
        rejected, and messages that queues gave up."""
        return self._supervisor.dead()

    def sink_function(self, name: str, fn: Callable[..., Any]) -> None:
        """Declare a function for sinks of kind PYTHON: `fn(change, key)` gets a pyarrow Table of a change, and a key unique to
        the call, the same when the call is retried. Functions are not stored: the process that runs the sink declares them."""
        self._supervisor.sinks.declared.functions[text_of(name, "function")] = fn

    @property
    def _deletions(self) -> Deletions:
        from headwater.deletion import Deletions

        return Deletions(self.log, self._clock, lambda: self._views, lambda: self._supervisor, self.path)

    def _resume(self) -> None:
        """Complete deletions that a crash interrupted, and repeat those that an older copy of this workspace has no
        entry of. `hw.open` calls this before it returns."""
        if self.log.entries(DELETION) or self.log.keys.forgotten():
            self._deletions.resume()

    def forget(self, subject: int | str, *, by: str | None = None, reason: str | None = None) -> Deletion:
        """Forget a subject (crypto-shredding): destroy the key to every value that is PRIVATE BY it. These values are
        unreadable when this returns, and from the next tick on gone from views and their sinks; `_forgotten` has a
        record of the deletion.

        `by` names the person responsible, by default the user of the operating system. The returned `Deletion` lists
        every place that contained the values, with its progress; `deletions()` returns it again later.
        """
        return self._deletions.forget(subject, by=by, reason=reason)

    def excise(self, topic: str, where: str, *, by: str | None = None, reason: str | None = None) -> Deletion:
        """Excise (hard delete) the records of a topic that match an SQL condition from the log; their offsets stay gaps. From the
        next tick on, views are as if these records had never existed; `_excised` has a record of the deletion."""
        return self._deletions.excise(topic, where, by=by, reason=reason)

    def deletions(self) -> list[Deletion]:
        """Return every forgetting and excision, in order, each with its progress in every place that contained the data."""
        return self._deletions.all()

    def rotate_keys(self) -> int:
        """Wrap the keys to private columns with a new master key, and destroy the old one. Returns the number of keys."""
        return self.log.keys.rotate()

    def run(self, *, tick_rows: int | None = None) -> RunReport:
        """Advance every view to the end of the log, and return a report.

        Sources first append what is committed in their systems by now, and sinks are reconciled at the end. Alerts are
        checked once, unless an engine runs. `tick_rows` limits the records of a tick; an atomic append is never split.
        If an engine runs, this waits until the engine has advanced as far.
        """
        rows, before = _tick_rows(tick_rows), self._supervisor.rejected()
        captured = -self._supervisor.captured_rows()
        if self.log.entries(SOURCE):
            self._supervisor.sources.catch_up(CONNECTORS_TIMEOUT_S)
        captured += self._supervisor.captured_rows()
        report = self._views.run(rows)
        if self.log.entries(SINK):
            excised = self._supervisor.erasure.erase()  # first: append-only targets stop at deleted rows
            self._supervisor.sinks.catch_up(CONNECTORS_TIMEOUT_S * 1_000)
            while (
                self._supervisor.erasure.erase() or excised
            ):  # excisions of copies in topics, which views and other sinks may read
                excised = False
                report = report.and_then(self._views.run(rows))
                self._supervisor.sinks.catch_up(CONNECTORS_TIMEOUT_S * 1_000)
        if self.log.entries(ALERT):
            self._supervisor.evaluate_alerts()
        rejected = since(before, self._supervisor.rejected())
        return dataclasses.replace(report, rejected=rejected, captured=captured)

    def start(self, *, every: str | timedelta = "auto", tick_rows: int | None = None) -> Runner:
        """Keep every view up to date in the background, until `stop()`.

        `every` is the time from one tick to the next, such as '200 ms': longer is more throughput. 'auto' (the default)
        starts a tick as soon as there are new records, with short pauses at low load. A tick reads all new records, at
        most `tick_rows`: under load ticks grow, and the next one starts at once while records are left.
        """
        from headwater.views.pacing import pace_of

        return self._views.start(pace_of(every), _tick_rows(tick_rows), companions=self._supervisor)

    def query(
        self,
        text: str,
        *,
        as_of: int | str | datetime | None = None,
        after: Receipt | str | int | None = None,
        timeout: float = 30,
    ) -> pa.Table:
        """Return the result of a SELECT over views and topics, all as of one tick.

        `as_of` is an earlier tick, by its number or token, or a time: the last tick committed at or before it. `after` is the
        receipt of an append that the result must include: the query waits for it, or, if no engine runs, advances the views.
        With a source, `after` may be a position in its system, such as an LSN of Postgres that was read after a commit.
        """
        query = text_of(text, "query", hint='ws.query("SELECT * FROM revenue")')
        if isinstance(after, (str, int)):
            after = self._supervisor.receipt(after, timeout)
        return self._views.reads.query(query, as_of=as_of, after=after, timeout_ms=timeout * 1000)

    def subscribe(
        self,
        text: str,
        *,
        since: int | str | None = None,
        timeout: float | None = None,
        rows_max: int | None = None,
    ) -> Subscription:
        """Subscribe to a SELECT that could be a view: its rows at the newest tick, then the changes of every tick.

        Returns an iterator of `Change(tick, rows, snapshot)` that waits for more; it ends at `close()`, or after `timeout`
        seconds without a change. `ws.start()` runs the ticks, in this process or another. The subscription's `token` resumes
        it: `since=token` returns only later changes. `snapshot` is set when `rows` are the complete result and replace all
        earlier changes: at the beginning, and when the subscription cannot resume, because ticks in between are no longer
        kept, a view was rebuilt, or an older copy of the workspace was restored. State of joins and aggregates is kept in
        memory, `rows_max` rows at most.
        """
        from headwater.log.reader import wait_ms
        from headwater.serving.subscribe import ROWS_MAX

        hint = 'ws.subscribe("SELECT * FROM revenue")'
        found = list(parse(text_of(text, "query", hint=hint)))
        if len(found) != 1 or not isinstance(found[0], QueryText):
            raise UsageError("a subscription must be exactly one SELECT", hint=hint, reason="not-a-select")
        return self._views.reads.subscribe(
            found[0],
            None if since is None else tick_token(since, "since"),
            wait_ms(timeout),
            ROWS_MAX if rows_max is None else whole_number(rows_max, "rows_max", least=1),
        )

    def function(
        self, name: str, fn: Callable[..., Any], *, returns: Any, per_row: bool = False, version: Any = 1
    ) -> None:
        """Declare a scalar function for views and queries: deterministic, one value per row.

        `fn` gets a pyarrow Array per argument and returns as many values, as an Array or a value that `pa.array` accepts;
        with `per_row` it gets and returns single Python values. `returns` is an SQL type. Functions are not stored: every
        process that runs views declares them. Another `version` or type rebuilds the views that use the function.
        """
        self._views.declarations.declare(name, lambda d: d.function(name, fn, returns, per_row, version))

    def table_function(
        self, name: str, fn: Callable[..., Any], *, returns: Any, per_row: bool = False, version: Any = 1
    ) -> None:
        """Declare a table function for LATERAL: deterministic, a list of rows per row. `returns` is the columns of these rows.

        `fn` gets a pyarrow Array per argument and returns a list of rows for each of their values, as an Array or a
        value that `pa.array` accepts; with `per_row` it gets single Python values and yields rows, as tuples or dicts.
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

        `add(state, *arrays)` returns the state with rows of a group added, given as a pyarrow Array per argument;
        `merge(a, b)` the state of the rows of both; `remove(state, *arrays)` the state with rows retracted. Without
        `remove`, groups that lose rows are recomputed. `result(state)` is the value of a group, by default the state
        itself. `state` is the SQL type of a state (by default that of `returns`), and `zero` the state of no rows.
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
        """Declare a view of the current state of every key: `step(state, event)` over the key's records in log order.

        The topic must be partitioned by the key, or have one partition. `returns` is the columns of a state, which
        follow the key's columns in the view; `zero`, and the result of `step`, is a dict or a tuple of them. Without
        `per_row`, `step` gets a pyarrow RecordBatch of a key's next records at once.
        """
        from headwater.views.udf_declarations import FoldFunction

        text_of(topic, "topic")
        columns = key_of(key)
        if not columns:
            raise UsageError(f"fold {name!r} has no key", hint='key="account"', fold=name)
        fold = FoldFunction(zero, step, per_row)
        self._views.declarations.declare(name, lambda d: d.fold(name, topic, columns, fold, returns, version))
        return self.view(name)

    def spark(self, name: str) -> DataFrame:
        """Return a view or topic at the newest tick as a Spark DataFrame."""
        return self._views.reads.frame(text_of(name, "view", hint='ws.spark("revenue")'))

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
        """Return the topic of that name. With a `schema`, create the topic as CREATE TOPIC does if it does not exist.

        `schema` is a pyarrow schema or the columns as in CREATE TOPIC, `options` are those of WITH: partitions,
        partition_by, retention and so on. `private` lists the columns to encrypt, each with the column that names its
        subject: {"email": "user"}. TopicExistsError, with the difference, if the topic exists with another definition.
        """
        text_of(name, "topic", hint='ws.topic("clicks")')
        if schema is None:
            if options or any(given is not None for given in (key, time, lateness, private)):
                raise UsageError(
                    f"topic {name!r} is given options but no schema",
                    hint="pass its columns to create it: schema='id BIGINT, at TIMESTAMP'",
                    topic=name,
                    reason="no-schema",
                )
        else:
            columns = columns_of(name, schema, key, time)
            create_topic(self.log, definition_of(name, columns, lateness, private, options))
        return Topic(self.log, name, self._clock)

    def newest_tick(self) -> int:
        """Return the number of the newest tick, as `as_of` takes it; 0 before the first tick."""
        return newest.tick if (newest := self._views.store.latest_whole()) is not None else 0

    def topics(self) -> list[Topic]:
        """Return every topic, by name."""
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
        """Append to several topics atomically: readers see all of the rows or none. Options as for `Topic.append`.

        `commit` is a cursor or a group member whose position is committed with the rows: a loop that reads, transforms
        and appends then has exactly-once output, wherever it is killed.
        """
        if not isinstance(rows, Mapping):
            raise UsageError(
                "ws.append takes a mapping from topics to rows",
                hint='ws.append({"orders": rows, "payments": rows})',
                reason="not-a-mapping",
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
        """Return an atomic append in steps, which may be larger than memory: `with ws.transaction() as tx: tx.append(...)`.

        The end of the block commits, with the receipt in `tx.receipt`; an exception that leaves the block aborts.
        """
        return Transaction(
            self.log,
            producer=make_producer(producer, sequence, epoch),
            expect=expectations(expect),
            commit=commit,
        )

    def cursors(self) -> list[CursorInfo]:
        """Return every cursor as it is stored; a consumer group's position is the cursor of its name."""
        return sorted(self.log.cursors(), key=lambda c: (c.topic, c.name))

    def lag(self) -> LagReport:
        """Return how far each cursor lags, when retention overtakes it, and when the disk is full, at present rates."""
        return lag_report(self.log, self._clock, shutil.disk_usage(self.path).free if self.path else None)

    def metrics(self) -> str:
        """Return current metrics in Prometheus' text format: rows, lags, ticks by phase, watermarks, sinks, disk."""
        from headwater.metrics import exposition

        return exposition(self._collect_metrics())

    def _collect_metrics(self) -> Iterable[Metric]:
        from headwater.metrics import CollectedMetrics

        free = shutil.disk_usage(self.path).free if self.path else None
        return CollectedMetrics(self.log, self._clock, self._views, self._supervisor, free).collect()

    def maintain(self, *, force: bool = True, override_holds: bool = False) -> MaintenanceReport:
        """Seal segments, apply retention and compact, now. `override_holds` removes even what holding cursors have not read.

        `waiting` in the report names views that keep records from being removed by retention, with a remedy. `failed`
        names steps that failed, such as the sealing of a damaged segment; all other steps were done.
        """
        if not self.log.entries("view"):
            return self.log.maintain(force=force, override_holds=override_holds)
        from headwater.engine.collections.retention_holds import failure_of, waiting

        failed = failure_of(self._views.release_records)
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
        """Read everything, or the given topics, and check it against its checksums. Unless topics were given, also
        compare each view with its SELECT run in batch, and each sink with its view at the sink's tick. A stopped view,
        and a topic whose source, or whose table in a source, is stopped, count as differences.

        `repair` reconciles sinks that differ. `cheap` skips views, and compares sinks by checksums that every tick
        maintains. `progress` is called with the number of bytes checked so far.
        """
        if isinstance(topics, str):
            topics = [topics]
        for name in topics or ():
            self.log.topic(text_of(name, "topic"))
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
            stopped = self._supervisor.sources.stopped()
            found += [Finding(what, None, None, None, f"stopped: {why}") for what, why in stopped.items()]
        sinks: list[SinkCheck] = []
        if topics is None and self.log.entries(SINK):
            sinks = self._supervisor.sinks.verify(repair=repair, cheap=cheap)
            found += [sink.finding for sink in sinks if sink.ok is False]
        return Verification(tuple(found), checked, tuple(views), tuple(sinks))

    def close(self) -> None:
        """Release every handle. Appended records are durable without it."""
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
