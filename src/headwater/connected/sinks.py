"""The sinks of a workspace: what follows which view, kept in step here, waited for and held against the view."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.clock import Clock
from headwater.connected.bulletin import Board
from headwater.connected.copies import private_in_copy, refuse_plain_letters
from headwater.connected.declaring import Declared
from headwater.connected.letters import (
    begin_anew,
    chosen,
    count_dropped,
    incarnation_of,
    make_letters,
    put_letters,
)
from headwater.connections import SINK, SINK_SETTABLE, SinkDefinition, altered
from headwater.errors import HeadwaterError, SinkExistsError, SinkNotFoundError, StatementError, UsageError
from headwater.log.protocol import Entry, Log
from headwater.queries.statements import CreateSink, DropSink, SetSink
from headwater.runtime.catalog import definitions
from headwater.runtime.deeds import read_deeds
from headwater.runtime.dependencies import below
from headwater.sinks.applying import Applier, Lag, Status, refuse_occupied
from headwater.sinks.checking import SinkCheck, check
from headwater.sinks.deliveries import one_tick_at_a_time
from headwater.sinks.feed import Feed, StoreFeed
from headwater.sinks.keys import check_key
from headwater.sinks.kinds import forget, is_readable, keeper_of, open_target, place_of, wanted_of
from headwater.sinks.python import Function
from headwater.sinks.rebuilding import Rebuilding, Step
from headwater.sinks.running import SinkRunner
from headwater.sinks.target import Shape, SinkError, Stand, Target
from headwater.sinks.topic_versions import Topics, topics_of
from headwater.sinks.withheld import Withheld

if TYPE_CHECKING:
    from headwater.runtime.views import Views
    from headwater.sinks.search_index import SearchIndex


@dataclass(frozen=True)
class SinkStatus:
    """How a sink is doing, as far as this process knows, and how far it is behind its view. `dropped` are those of its withheld
    rows that somebody has dropped."""

    status: Status
    lag: Lag
    dropped: int = 0

    @staticmethod
    def told(facts: Mapping[str, Any]) -> SinkStatus:
        """As the news of a sink that is kept in step has it."""
        return SinkStatus(Status(**facts["status"]), Lag(**facts["lag"]), facts.get("dropped", 0))


class Sinks:
    """Everything about sinks. A sink is connected to when something is first asked of its target."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        root: Path,
        workspace: str,
        views: Callable[[], Views],
        board: Board,
    ) -> None:
        self._log = log
        self._clock = clock
        self._root = root
        self._workspace = workspace
        self._views = views
        self._board = board
        self._declared = Declared(log, SINK, SinkDefinition.from_document, SinkExistsError, SinkNotFoundError)
        self.functions: dict[str, Function] = {}
        """The user's, by name, for sinks of kind PYTHON."""
        self._guard = threading.RLock()
        self._open: dict[str, tuple[Entry, SinkRunner, Feed]] = {}

    # --- declaring -------------------------------------------------------------------------------------------------

    def definitions(self) -> Mapping[str, SinkDefinition]:
        """What is declared, by name."""
        return self._declared.all()

    def create(self, statement: CreateSink) -> None:
        """CREATE SINK: its key is checked against the view, and its target asked, before anything is declared."""
        if not self._declared.is_new(statement):
            return
        made = statement.definition
        made = replace(made, key=self._key(made))
        self._refuse_circle(made)
        view = self._views().spelled(made.view)
        refuse_plain_letters(self._log, made, view)
        made = replace(made, private=private_in_copy(self._log, self._views(), made, view))
        shape = self._shape(made)
        target = open_target(made, self._root, self._log, self.functions)
        try:
            target.prepare(shape)
            if not made.resolved().get("adopt"):
                refuse_occupied(shape, target)
        finally:
            target.close()
        if wanted_of(made).on_error == "divert":
            make_letters(self._log, made.name)
        was = self.definitions().get(made.name)
        if was is not None and is_elsewhere(was, made):
            begin_anew(self._log, made.name)
        self._declared.put(made)

    def set(self, statement: SetSink) -> None:
        """ALTER SINK ... SET: whoever keeps it in step, here or elsewhere, goes on with these options where it is. Another way to
        the target is tried first."""
        entry = self._declared.entry(statement.name)
        was = self._declared.read(entry)
        made = altered(was, statement.options)
        if made == was:
            return
        refuse_plain_letters(self._log, made, self._views().spelled(made.view))
        wanted, shape = wanted_of(made), self._shape(made)
        if {"url", "catalog"} & set(statement.options):
            target = open_target(made, self._root, self._log, self.functions)
            try:
                target.prepare(shape)
                refuse_occupied(shape, target)
            finally:
                target.close()
        else:
            with suppress(SinkError):  # a user's function need not be known here
                open_target(made, self._root, self._log, self.functions).close()
        if wanted.on_error == "divert":
            make_letters(self._log, made.name)
        self._declared.put(made, entry)

    def drop(self, statement: DropSink) -> None:
        """DROP SINK: what it has written stays where it is."""
        if statement.if_exists and statement.name not in self._log.entries(SINK):
            return
        entry = self._declared.entry(statement.name)
        self._forget(entry.name)
        begin_anew(self._log, entry.name)
        self._log.drop_entry(SINK, entry.name, expect=entry.sequence)
        forget(self._declared.read(entry), self._log)

    def _refuse_circle(self, made: SinkDefinition) -> None:
        """A view must not read, by whatever way, what its own sink writes: it would never come to rest."""
        topic = str(made.options.get("topic", "")) if made.kind == "topic" else ""
        view = self._views().spelled(made.view)
        if topic and topic.lower() in (name.lower() for name in below(self._log, view)):
            raise StatementError(
                f"view {made.view!r} reads topic {topic!r}, which sink {made.name!r} would write to",
                hint="write to another topic",
            )

    def is_open(self, name: str) -> bool:
        """Whether its target was asked something from here."""
        return name in self._open

    def apart(self) -> Sinks:
        """The same sinks with connections of their own, for one who may not wait for those that are here."""
        made = Sinks(self._log, self._clock, self._root, self._workspace, self._views, self._board)
        made.functions = self.functions
        return made

    def of_view(self, view: str) -> list[str]:
        """The sinks that follow a view."""
        return [name for name, made in self.definitions().items() if made.view.lower() == view.lower()]

    def readers_of(self, topic: str) -> list[str]:
        """The views that read a topic, and the cursors and groups."""
        views = definitions(self._log).values()
        found = [view.name for view in views if topic.lower() in map(str.lower, view.reads)]
        if topic in self._log.topics():
            found += sorted(f"cursor {cursor.name}" for cursor in self._log.cursors(topic))
        return found

    def topics_of(self, name: str) -> Topics | None:
        """Which topics a sink of kind TOPIC has: after it was built anew it writes to another than the one it was declared with.
        None for other kinds."""
        made = self.definitions()[self.spelled(name)]
        return topics_of(self._log, made.name, str(made.options["topic"])) if made.kind == "topic" else None

    def spelled(self, name: str) -> str:
        """A sink's name as it was declared; SinkNotFoundError."""
        return self._declared.entry(name).name

    # --- at work ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Keep every sink in step from now on, each in a thread of its own; also those that are declared later.
        One that is no longer declared ends."""
        declared = self.definitions()
        for name in self._open.keys() - set(declared):
            self._forget(name)
        for name in declared:
            # this process may lack what it takes, a user's function or a password: `status` says so, and the others go on
            with suppress(HeadwaterError):
                runner = self._runner(name)[0]
                if not runner.running:
                    runner.start()

    def stop(self) -> None:
        """Stop all of them, each after the change that it is applying."""
        with self._guard:
            known, self._open = list(self._open.values()), {}
        for _, runner, _ in known:
            runner.stop()

    def catch_up(self, timeout_ms: float) -> None:
        """Bring every sink level with its view, here and now. The first error is raised when all have been tried."""
        failed: Exception | None = None
        for name in self.definitions():
            try:
                runner = self._runner(name)[0]
                latest = self._views().store.latest()
                if runner.running and latest is not None:
                    runner.wait(latest.tick, timeout_ms)
                elif not runner.running:
                    runner.catch_up(timeout_ms=timeout_ms)
            except Exception as error:  # noqa: BLE001 - one sink that fails holds up no other
                failed = failed or error
        if failed is not None:
            raise failed

    def wait(self, name: str, tick: int, timeout_ms: float) -> None:
        """Until a sink has everything up to a tick; without an engine here that is brought about."""
        self._runner(name)[0].wait(tick, timeout_ms)

    def status(self, name: str) -> SinkStatus:
        """How a sink is doing, with how many of its letters were dropped."""
        return self._with_dropped(name, self._status(name), lambda: self.withheld(name))

    def may_have_dropped(self, told: SinkStatus) -> bool:
        """Whether a sink's target is to be asked for the rows that it has refused, to count those that were dropped."""
        return told.status.withheld > 0 and bool(read_deeds(self._log).by_letter)

    def _status(self, name: str) -> SinkStatus:
        """How a sink is doing. Where it is not kept in step here, that is as the process which does tells it; where none does,
        its target is asked where it stands."""
        known = self._open.get(name)
        if known is None or not known[1].running:
            news = self._board.read()
            if news is not None and name in news.sinks:
                return SinkStatus.told(news.sinks[name])
        try:
            runner, _ = self._runner(name)
        except HeadwaterError as error:  # this process lacks what it takes, such as a user's function
            return SinkStatus(Status(name, "stopped", error.message), Lag(0, None, 0.0))
        applier = runner.applier
        if not runner.running:
            try:
                applier.look()
            except HeadwaterError as error:
                applier.note("retrying" if error.retryable else "stopped", error.message)
        return SinkStatus(applier.status(), applier.lag())

    def news(self) -> dict[str, dict[str, Any]]:
        """Of the sinks that are kept in step here."""
        found = {}
        for name, (_, runner, _) in list(self._open.items()):
            if runner.running:
                applier = runner.applier
                told = SinkStatus(applier.status(), applier.lag())
                found[name] = asdict(self._with_dropped(name, told, applier.refused))
        return found

    def _with_dropped(self, name: str, told: SinkStatus, withheld: Callable[[], Withheld]) -> SinkStatus:
        """With how many of the rows that its target refuses were dropped, as far as that can be said."""
        with suppress(HeadwaterError):
            if self.may_have_dropped(told):
                deeds, anew = read_deeds(self._log), incarnation_of(self._log, name)
                return replace(told, dropped=count_dropped(name, withheld(), deeds, anew))
        return told

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each sink that is kept in step, here or in another process."""
        here = self.news()
        news = None if here else self._board.read()
        return here if news is None else news.sinks

    def index(self, name: str) -> SearchIndex:
        """The index of a sink of kind SEARCH, for readers."""
        made = self.definitions()[self.spelled(name)]
        if made.kind != "search":
            raise UsageError(
                f"sink {made.name!r} is of kind {made.kind.upper()}, which is not searched",
                hint="CREATE SINK ... INTO SEARCH makes an index",
            )
        from headwater.sinks.search_index import SearchIndex

        return SearchIndex(made.resolved().get("path") or place_of(made, self._root))

    def retry(self, name: str, letters: Collection[str] | None = None) -> int:
        """Try the rows again that a sink's target has refused, all that were not dropped or those of some letters; how many it
        took."""
        name = self.spelled(name)
        choose = chosen(name, read_deeds(self._log), letters, incarnation_of(self._log, name))
        return self._runner(name)[0].applier.retry(choose)

    def withheld(self, name: str) -> Withheld:
        """The rows that a sink's target has refused."""
        made = self.definitions()[self.spelled(name)]
        if is_readable(made):
            return self._runner(name)[0].applier.withheld()
        text = keeper_of(made, self._log).read()
        stand = None if text is None else Stand.parse(text)
        return Withheld.decode(b"" if stand is None else stand.withheld, self.shape(name).schema)

    def shape(self, name: str) -> Shape:
        """What a sink follows, and how."""
        return self._shape(self.definitions()[self.spelled(name)])

    def prepared(self, name: str) -> Target:
        """The target of a sink, connected to beside whoever keeps it in step, for one who asks and closes it."""
        made = self.definitions()[self.spelled(name)]
        target = open_target(made, self._root, self._log, self.functions)
        try:
            target.prepare(self._shape(made))
        except BaseException:
            target.close()
            raise
        return target

    def is_kept_elsewhere(self, name: str) -> bool:
        """Whether another process keeps a sink in step."""
        known = self._open.get(name)
        if known is not None and known[1].running:
            return False
        news = self._board.read()
        return news is not None and name in news.sinks

    def resume(self, name: str) -> None:
        """Have a sink that is stopped try again at once."""
        self._runner(name)[0].resume()

    def verify(self, *, repair: bool = False, cheap: bool = False) -> list[SinkCheck]:
        """Hold every sink against its view that can be read back; with `repair` bring those level that differ.
        `cheap` reads a view only where its sink's checksum is not the one that was kept."""
        found = []
        for name, made in self.definitions().items():
            if is_readable(made):
                runner, feed = self._runner(name)
                found.append(check(runner.applier, feed, repair=repair, cheap=cheap))
        return found

    @contextmanager
    def versions(self, name: str, told: Callable[[Step], None] = lambda step: None) -> Iterator[Rebuilding]:
        """Another version of a sink, beside the one in force: to be built, or kept from before. The sink goes on meanwhile."""
        made = self.definitions()[self.spelled(name)]
        diverts = wanted_of(made).on_error == "divert"
        target = open_target(made, self._root, self._log, self.functions)
        try:
            yield Rebuilding(
                self._shape(made),
                target,
                self._feed(made),
                self._clock,
                on_error="divert" if diverts else "stop",
                told=told,
            )
        finally:
            target.close()
            known = self._open.get(made.name)
            if known is not None:
                known[1].applier.forget()

    # --- one of them -----------------------------------------------------------------------------------------------

    def _runner(self, name: str) -> tuple[SinkRunner, Feed]:
        with self._guard:
            entry = self._declared.entry(name)
            known = self._open.get(entry.name)
            if known is not None and known[0].sequence == entry.sequence:
                return known[1:]
            self._forget(entry.name)
            made = self._declared.read(entry)
            feed: Feed = self._feed(made)
            if not is_readable(made):
                feed = one_tick_at_a_time(feed)
            diverts = wanted_of(made).on_error == "divert"
            applier = Applier(
                self._shape(made),
                open_target(made, self._root, self._log, self.functions),
                feed,
                self._clock,
                on_error="divert" if diverts else "stop",
                letters=partial(put_letters, self._log) if diverts else None,
            )
            runner = SinkRunner(applier, feed, self._clock)
            self._open[entry.name] = (entry, runner, feed)
            return runner, feed

    def _feed(self, made: SinkDefinition) -> StoreFeed:
        views = self._views()
        return StoreFeed(views.store, views.spelled(made.view), views.arrivals.wait, self._workspace)

    def _forget(self, name: str) -> None:
        with self._guard:
            known = self._open.pop(name, None)
        if known is not None:
            known[1].stop()

    def _shape(self, made: SinkDefinition) -> Shape:
        views = self._views()
        view = views.spelled(made.view)
        return Shape(made.name, view, views.columns(view), made.key, wanted_of(made).mode)

    def _key(self, made: SinkDefinition) -> tuple[str, ...]:
        """What rows are replaced by; StatementError if nothing shows that it is unique in the view."""
        wanted, shape, views = wanted_of(made), self._shape(made), self._views()
        if wanted.mode == "upsert":
            return check_key(shape, wanted.key, views.keys(shape.view))
        if wanted.mode == "append" and not views.only_grows(shape.view):
            raise StatementError(
                f"sink {made.name!r} would append, and view {shape.view!r} takes rows back",
                hint="mode = 'changelog' appends every change, with _weight and _tick; or give a key",
            )
        return ()


def is_elsewhere(was: SinkDefinition, made: SinkDefinition) -> bool:
    """Whether a declaration means another target than the one that it replaces, or another view."""
    same = set(SINK_SETTABLE[made.kind]) - {"url", "catalog"}
    before, after = ({k: v for k, v in each.options.items() if k not in same} for each in (was, made))
    return (was.kind, was.view.lower()) != (made.kind, made.view.lower()) or before != after
