"""The sources of a workspace: what fills which topics, kept going here or brought up to now, and waited for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.arguments import whole_number
from headwater.capture.capturing import Capture, Capturing, producer_of, too_slow
from headwater.capture.kinds import HANDED_OVER, LISTENING, open_source
from headwater.capture.source import AGAIN, AWAY
from headwater.catalog import TopicDefinition
from headwater.catalog import difference as topic_difference
from headwater.clock import Clock, from_us
from headwater.connected.bulletin import Board
from headwater.connected.declaring import Declared
from headwater.connected.evolving import define
from headwater.connected.hooks import NOT_SERVED, Hooks
from headwater.connections import SOURCE, SourceDefinition, altered
from headwater.errors import HeadwaterError, SourceExistsError, SourceNotFoundError, UsageError
from headwater.log.protocol import Entry, Log
from headwater.queries.statements import AlterSource, CreateSource, DropSource, SetSource

if TYPE_CHECKING:
    from headwater.runtime.views import Views

ORDER = "order"
"""The kind of the entries that tell a source to do something."""
AT_ONCE_S = 0.05
"""So long it is waited before a source is made to say how far it is."""
_LOOKED_AT = {"url", "tables", "types", "path", "columns"}
"""Options that are tried before they are set."""
SPILL = "staging"
"""Below the workspace: for what a source cannot hold in memory."""


@dataclass(frozen=True)
class Told:
    """How a source is doing: in words, and up to where the log has everything."""

    state: str
    position: str | None


class Sources:
    """Everything about sources. One is connected to when it is declared, and when it is read."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        root: Path,
        views: Callable[[], Views],
        board: Board,
        hooks_board: Board,
    ) -> None:
        self._log = log
        self._clock = clock
        self._root = root
        self._views = views
        self._board = board
        self._declared = Declared(
            log, SOURCE, SourceDefinition.from_document, SourceExistsError, SourceNotFoundError
        )
        self.hooks = Hooks(log, clock, self._declared, hooks_board)
        """Those that are posted to."""
        self._guard = threading.RLock()
        self._running: dict[str, tuple[Entry, Capturing]] = {}
        self._handed: dict[str, tuple[Capture, int]] = {}
        self._stopped: dict[str, dict[str, str]] = {}

    # --- declaring -------------------------------------------------------------------------------------------------

    def definitions(self) -> Mapping[str, SourceDefinition]:
        """What is declared, by name."""
        return self._declared.all()

    def create(self, statement: CreateSource) -> None:
        """CREATE SOURCE: connects, sees that it can be captured, and makes its topics, so that views may read them at once."""
        if not self._declared.is_new(statement):
            return
        made = statement.definition
        source = open_source(made, self._log, self._root / SPILL)
        try:
            topics = source.check()
        finally:
            source.close()
        self._fill(made.name, topics)
        self._declared.put(replace(made, generation=self._generation(made.name)))

    def _fill(self, name: str, topics: Sequence[TopicDefinition]) -> None:
        """Make the topics of a source, or give them its columns."""
        for topic in topics:
            self._refuse_other(name, topic)
        for topic in topics:
            define(self._log, self._views, topic)

    def _generation(self, name: str) -> int:
        """That of the source which is replaced; one that nobody has had where an earlier one was dropped."""
        entry = self._log.entries(SOURCE).get(name)
        if entry is not None:
            return self._declared.read(entry).generation
        return next(g for g in itertools.count() if self._log.producer(producer_of(name, g)) is None)

    def _refuse_other(self, name: str, topic: TopicDefinition) -> None:
        existing = self._log.topics().get(topic.name)
        if existing is None or existing.captured_by == name:
            return
        whose = f"source {existing.captured_by!r}" if existing.captured_by else "somebody else"
        raise UsageError(
            f"source {name!r} cannot fill topic {topic.name!r}: it is there already, and filled by {whose}",
            detail="\n    ".join(topic_difference(existing, topic)),
            hint=f"give it another topic, such as {name}_{topic.name}: tables = '... AS ...', or topic = '...'",
            topic=topic.name,
            source=name,
        )

    def drop(self, statement: DropSource) -> None:
        """DROP SOURCE: what it made outside is removed; its topics stay, and nobody fills them any more."""
        if statement.if_exists and statement.name not in self._log.entries(SOURCE):
            return
        entry = self._declared.entry(statement.name)
        self._stop(entry.name)
        source = open_source(self._declared.read(entry), self._log, self._root / SPILL)
        try:
            source.drop()
        finally:
            source.close()
        self._log.drop_entry(SOURCE, entry.name, expect=entry.sequence)

    def spelled(self, name: str) -> str:
        """A source's name as it was declared; SourceNotFoundError."""
        return self._declared.entry(name).name

    def position_of(self, after: str | int) -> int:
        """A position in a source as a number, from what users have: for Postgres, an LSN."""
        return parse_lsn(after) if isinstance(after, str) else whole_number(after, "after")

    def alter(self, statement: AlterSource) -> None:
        """ALTER SOURCE: an order that whoever reads the source takes up, here or in another process, now or at its next start."""
        name = self.spelled(statement.name)
        if statement.action == "restart" and statement.table is None:
            self._restart(name)
            return
        made = self.definitions()[name]
        source = open_source(made, self._log, self._root / SPILL)
        order = {
            "source": name,
            "action": statement.action,
            "table": statement.table,
            "where": statement.where,
        }
        try:
            give(source, order)  # to nobody, to see whether it can be given
        finally:
            source.close()
        self._log.put_entry(ORDER, f"{name}_{self._log.sequence()}", order, expect=None)

    def set(self, statement: SetSource) -> None:
        """ALTER SOURCE ... SET: whoever reads it, here or elsewhere, begins anew with these options, where it is."""
        entry = self._declared.entry(statement.name)
        was = self._declared.read(entry)
        made = altered(was, statement.options)
        if made == was:
            return
        source = open_source(made, self._log, self._root / SPILL)
        try:
            topics = source.check() if _LOOKED_AT & set(statement.options) else []
        finally:
            source.close()
        self._fill(made.name, topics)
        self._declared.put(made, entry)

    def _restart(self, name: str) -> None:
        """Begin anew: what was made outside is made again, and everything is read from the start. Until then the topics are as
        they are."""
        entry = self._log.entries(SOURCE)[name]
        made = self._declared.read(entry)
        self._stop(name)
        source = open_source(made, self._log, self._root / SPILL)
        try:
            source.drop()
            source.check()
        finally:
            source.close()
        self._declared.put(replace(made, generation=made.generation + 1), entry)

    def _hand_over(self, name: str, capture: Capture) -> None:
        """Give a source the orders that are there for it; each is taken out once a later commit has it in its position."""
        for entry in self._log.entries(ORDER).values():
            if entry.document["source"] != name:
                continue
            known = self._handed.get(entry.name)
            if known is None or known[0] is not capture:
                give(capture.source, entry.document)
                self._handed[entry.name] = (capture, capture.progress.commits)
            elif capture.progress.commits > known[1]:
                self._log.drop_entry(ORDER, entry.name)
                del self._handed[entry.name]

    # --- at work ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Keep every source going from now on, each in a thread of its own. One that has stopped for a reason rests until it is
        declared otherwise; one that is no longer declared ends."""
        declared = self._log.entries(SOURCE)
        for name in self._running.keys() - set(declared):
            self._stop(name)
        for name, entry in declared.items():
            if entry.document["kind"] in HANDED_OVER:
                continue
            with self._guard:
                known = self._running.get(name)
                if known is not None and known[1].capture is not None:
                    self._hand_over(name, known[1].capture)
                if known is None or known[0].sequence != entry.sequence:
                    if known is not None:
                        known[1].stop()
                    self._running[name] = (entry, Capturing(name, partial(self._capture, entry), self._clock))

    def stop(self) -> None:
        """Stop all of them, each after the transaction under way."""
        for name in list(self._running):
            self._stop(name)

    def catch_up(self, timeout_s: float) -> None:
        """Have the log hold everything that is committed in the sources by now."""
        for entry in self._log.entries(SOURCE).values():
            running = self._running.get(entry.name)
            if running is not None and running[1].running:
                running[1].wait(self._end(entry), timeout_s)
                continue
            if entry.document["kind"] in LISTENING:
                continue
            if self._views().engine() is not None:
                self._wait_elsewhere(entry, timeout_s)
                continue
            capture = self._capture(entry)
            try:
                self._hand_over(entry.name, capture)
                capture.run(until=capture.end())
                self._hand_over(entry.name, capture)
            finally:
                self._stopped[entry.name] = _stopped(capture)
                capture.close()

    def _wait_elsewhere(self, entry: Entry, timeout_s: float) -> None:
        """Another process runs the engine, and with it the sources."""
        end, deadline = self._end(entry), self._clock.steady_ms() + timeout_s * 1_000
        while self.sequence(entry.name) < end:
            if self._clock.steady_ms() > deadline:
                raise too_slow(entry.name, timeout_s)
            self._log.wait_commit(self._log.sequence(), 100)

    def wait(self, name: str, sequence: int, timeout_s: float) -> None:
        """Until the log has everything of a source up to a sequence; without an engine that is brought about."""
        name = self.spelled(name)
        if self._log.entries(SOURCE)[name].document["kind"] in HANDED_OVER:
            raise UsageError(
                f"source {name!r} is posted to, and has no positions to wait for",
                hint="each delivery is answered with its receipt: after=receipt waits for it",
            )
        running = self._running.get(name)
        if self.sequence(name) >= sequence:
            return
        if running is not None and running[1].running:
            capture = running[1].capture
            if capture is not None and not running[1].reaches(sequence, AT_ONCE_S):
                capture.end()  # on an idle server nothing would come: this makes it go on to where it stands
            running[1].wait(sequence, timeout_s)
        else:
            self.catch_up(timeout_s)

    def told(self, name: str) -> Told:
        """How a source is doing, as far as this process knows."""
        running, sequence = self._running.get(name), self.sequence(name)
        kind = self.definitions()[name].kind
        position = _position(kind, sequence)
        if kind in HANDED_OVER:
            return Told(self.hooks.facts().get(name, {}).get("state", NOT_SERVED), None)
        if running is None:
            news = self._board.read()
            if news is not None and name in news.sources:
                return Told(str(news.sources[name]["state"]), position)
            elsewhere = self._views().engine() is not None
            return Told("captured by another process" if elsewhere else "not running", position)
        return Told(_state(running[1]), position)

    def stopped_tables(self, name: str) -> Mapping[str, str]:
        """The tables of a source that are not captured any more, with the reason as far as it is known here."""
        if name in (facts := self.facts()):
            found: Mapping[str, str] = facts[name]["stopped_tables"]
            return found
        made = self.definitions()[name]
        known = self._log.producer(producer_of(name, made.generation))
        tables = ((known.note if known is not None else None) or {}).get("stopped", ())
        again = f"ALTER SOURCE {name} RESTART takes it up again, or says what is in the way"
        return {table: self._stopped.get(name, {}).get(table, again) for table in tables}

    def news(self) -> dict[str, dict[str, Any]]:
        """Of the sources that are kept going here."""
        found = {}
        for name, (_, capturing) in list(self._running.items()):
            progress, capture = capturing.progress, capturing.capture
            status = getattr(capture.source, "status", None) if capture is not None else None
            health = getattr(status, "health", None)
            found[name] = {
                "state": (state := _state(capturing)),
                "up": capturing.error is None and not state.startswith((AWAY, AGAIN)),
                "rows": progress.rows,
                "commits": progress.commits,
                "committed_at": progress.committed_at,
                "stopped_tables": _stopped(capture),
                "retained_bytes": None if health is None else health.retained_bytes,
                "behind_bytes": None if health is None else health.behind_bytes,
                "over_budget": None if health is None else health.over_budget,
                "counts": dict(getattr(status, "counts", None) or {}),
                "last_refused": list(getattr(status, "last_refused", ())),
            }
        return found

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each source that is at work, here or in another process."""
        news = None if self._running else self._board.read()
        return {**(self.news() if news is None else news.sources), **self.hooks.facts()}

    def sequence(self, name: str) -> int:
        """Up to where in a source the log has everything, as far as is known; -1 before the first."""
        running = self._running.get(name)
        made = self.definitions().get(name)
        known = self._log.producer(producer_of(name, made.generation if made is not None else 0))
        stored = -1 if known is None else known.sequence
        return stored if running is None else max(stored, running[1].progress.sequence)

    def _capture(self, entry: Entry) -> Capture:
        made = self._declared.read(entry)
        source = open_source(made, self._log, self._root / SPILL)

        def after() -> str | None:
            return _position(made.kind, capture.progress.sequence)

        define_topic = partial(define, self._log, self._views, after=after)
        capture = Capture(self._log, made.name, source, define_topic, self._clock, made.generation)
        return capture

    def _end(self, entry: Entry) -> int:
        source = open_source(self._declared.read(entry), self._log, self._root / SPILL)
        try:
            return source.end()
        finally:
            source.close()

    def _stop(self, name: str) -> None:
        with self._guard:
            known = self._running.pop(name, None)
        if known is not None:
            known[1].stop()


def _stopped(capture: Capture | None) -> dict[str, str]:
    """Why tables of a source are not captured any more, and what can be done, by table."""
    status = getattr(capture.source, "status", None) if capture is not None else None
    errors: Mapping[str, HeadwaterError] = getattr(status, "stopped", None) or {}
    return {str(table): f"{error.message}; {error.hint}" for table, error in sorted(errors.items())}


def _state(capturing: Capturing) -> str:
    """What a source that runs here does, in words."""
    if capturing.error is not None:
        return f"stopped: {capturing.error.message}"
    if capturing.capture is None:
        return "starting"
    source = capturing.capture.source
    told = getattr(source, "status", source)
    return str(getattr(told, "state", None) or "capturing")


def give(source: Any, order: Mapping[str, Any]) -> None:
    """Tell a source what to do; UsageError if it cannot."""
    method = {"restart": "retry"}.get(order["action"], order["action"])
    if not hasattr(source, method):
        raise UsageError(f"a source of this kind cannot {order['action']}")
    arguments = [] if order["table"] is None else [order["table"]]
    options = {} if order["where"] is None else {"where": order["where"]}
    getattr(source, method)(*arguments, **options)


def _position(kind: str, sequence: int) -> str | None:
    """A place in a source as its users write it."""
    if kind == "postgres":
        return format_lsn(sequence)
    return None if sequence < 0 else str(from_us(sequence))


def format_lsn(sequence: int) -> str | None:
    """A position in Postgres' log as Postgres writes it."""
    return None if sequence < 0 else f"{sequence >> 32:X}/{sequence & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The position that a text such as `0/16B3748` says."""
    high, slash, low = text.strip().partition("/")
    try:
        if slash:
            return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        pass
    raise UsageError(
        f"{text!r} is not a position in a Postgres log",
        hint="SELECT pg_current_wal_insert_lsn() gives one, such as 0/16B3748",
    )
