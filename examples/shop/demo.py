"""The demo: a shop, its database, its pipeline, its sinks, and an engine that is killed half-way.

`headwater demo`, or `make demo`. One process controls the others: Postgres, Redis, the engine (`headwater run`) and the server (`headwater
serve`) are started here and ended by their process ids, also on Ctrl-C and when something fails. All files are in one
temporary folder, which is removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import psycopg
from rich.console import Console

import headwater as hw

from . import report
from .play import Play, fill_tables
from .servers import Postgres, Process, Redis, headwater, make_folder
from .watch import DIRECTLY, Figures, Probes, Screen

HERE = Path(__file__).resolve().parent
PIPELINE = HERE / "shop.sql"
SECONDS = 120.0
SEED = 7
CATCH_UP_SECONDS = 180.0


class Demo:
    """The running processes of the demo, and what starts and stops them."""

    def __init__(self, console: Console, folder: Path, stack: ExitStack) -> None:
        self.console, self.folder, self._stack = console, folder, stack
        self.workspace = folder / "workspace"
        self.environ: dict[str, str] = {}
        self.outages: list[tuple[float, float]] = []
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        self.console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/dim]  {text}")

    def start(self, seed: int) -> None:
        """Start the servers, fill the shop's tables, open the workspace, start the engine and the console."""
        self.say("starting Postgres and Redis, and filling the shop's tables")
        postgres = Postgres(self.folder / "postgres")
        self._stack.callback(postgres.stop)
        cache = Redis(self.folder / "redis")
        self._stack.callback(cache.stop)
        postgres.wait()
        cache.wait()
        self.shop_url = postgres.url("shop")
        fill_tables(self.shop_url, (HERE / "schema.sql").read_text(encoding="utf-8"), seed)
        self.environ = {
            "SHOP_URL": self.shop_url,
            "REPORTS_URL": postgres.url("reports"),
            "CACHE_URL": cache.url(),
            "TMPDIR": str(self.folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
        }
        (self.folder / "tmp").mkdir()
        os.environ.update({name: url for name, url in self.environ.items() if name.endswith("_URL")})
        self.ws = self._stack.enter_context(hw.open(self.workspace))
        self.say("starting the engine: [bold]headwater run shop.sql[/bold]")
        self.engine = self.start_engine()
        self.server = headwater(["serve", "--port", "0"], self.workspace, self.environ)
        self._stack.callback(self.server.stop)
        self.address = self.server.wait_for("serving ").split()[1]
        self.say(f"the console is at [bold cyan]{self.address}[/bold cyan]")
        self.engine.wait_for("running ")
        self.wait_caught_up()
        self.say("all views have caught up with the shop's past orders; the shop opens")

    def start_engine(self) -> Process:
        """Start `headwater run shop.sql` in a process of its own; statements that were run before do nothing."""
        engine = headwater(["run", str(PIPELINE)], self.workspace, self.environ)
        self._stack.callback(engine.stop)
        return engine

    def verify(self) -> dict[str, Any]:
        """Run `headwater verify --json`: all bytes, every view against Spark in batch, every sink against its view."""
        answer = self.folder / "verified.json"
        verifying = headwater(["verify", "--json"], self.workspace, self.environ, answer)
        self._stack.callback(verifying.stop)
        status = verifying.wait()
        try:
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        except ValueError:
            raise RuntimeError(f"headwater verify ended with status {status}:\n{verifying.tail()}") from None
        return found

    def wait_caught_up(self) -> None:
        """Wait until every view and every sink has processed all records that exist now."""
        with psycopg.connect(self.shop_url, autocommit=True) as shop:
            # One more transaction: a view that has it has everything that was in the log before it.
            shop.execute("UPDATE customers SET name = name WHERE id = 1")
            found = shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert found is not None
        asked = urlencode({"after": found[0], "limit": 1, "timeout": 10})
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while True:
            self.check_engine()
            try:
                with DIRECTLY.open(f"{self.address}views/order_book?{asked}", timeout=30):
                    break
            except HTTPError as error:  # the server answers 5xx until the views have caught up
                if error.code < 500 or time.monotonic() > deadline:
                    said = error.read().decode(errors="replace")
                    raise RuntimeError(f"the views do not catch up: {said}\n{self.engine.tail()}") from None
                time.sleep(0.2)
        for sink in self.ws.log.entries("sink"):
            self.ws.sink(sink).wait(timeout=CATCH_UP_SECONDS)

    def check_engine(self) -> None:
        """Raise RuntimeError with the output of the engine if it has ended."""
        if not self.engine.running:
            raise RuntimeError(f"the engine ended:\n{self.engine.tail()}")

    def kill_engine(self) -> None:
        """Kill the engine, as a crash of the machine would, and start it again."""
        begin = time.monotonic()
        self.engine.kill()
        self.say(f"[bold red]kill -9 {self.engine.pid}[/bold red]: the engine is killed; the shop stays open")
        self._down_since = begin
        self.engine = self.start_engine()

    def engine_is_back(self) -> bool:
        """Whether the restarted engine runs; its outage is recorded then."""
        self.check_engine()
        if "running " not in self.engine.said():
            return False
        self.outages.append((self._down_since, time.monotonic()))
        seconds = self.outages[-1][1] - self._down_since
        self.say(f"the engine runs again after {seconds:.1f} s, from its last tick")
        return True


def conduct(
    console: Console, *, seconds: float | None, seed: int = SEED, kill: bool = True, keep: Path | None = None
) -> int:
    """Run the demo for so many seconds of activity, or until Ctrl-C. Return the exit status."""
    with _folder(keep) as folder, ExitStack() as stack:
        try:
            return _run(Demo(console, folder, stack), stack, seconds, seed, kill)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # everything is ended in any case


def _run(demo: Demo, stack: ExitStack, seconds: float | None, seed: int, kill: bool) -> int:
    """Start everything, open the shop, wait for the views and sinks, and verify."""
    demo.start(seed)
    probes = Probes(demo.ws)
    stack.callback(probes.close)
    play = Play(demo.shop_url, demo.address, seed, seconds, demo.say)
    _open_shop(demo, play, seconds, kill)
    if play.failed is not None:
        raise RuntimeError(f"the shop failed: {play.failed}") from play.failed
    demo.say("the shop is closed; waiting until all views and sinks have caught up")
    demo.ws.topic("clicks").finish()
    demo.wait_caught_up()
    probes.close()
    facts = report.gather(demo, play, probes)
    demo.say("recomputing every view in batch, and comparing every sink with its view")
    demo.engine.stop()
    return report.show(demo.console, facts, demo.verify())


def _open_shop(demo: Demo, play: Play, seconds: float | None, kill: bool) -> None:
    """Keep the shop open, and kill the engine half-way; without a time limit Ctrl-C closes it."""
    figures = Figures(demo.address, play, demo.ws)
    half = (seconds or SECONDS) / 2
    play.start()
    try:
        with Screen(demo.console, figures) as screen:
            while play.failed is None and (not play.over or kill or figures.engine == "down"):
                if kill and (play.over or play.seconds >= half):
                    demo.kill_engine()
                    kill, figures.engine = False, "down"
                if figures.engine == "down" and demo.engine_is_back():
                    figures.engine = "running"
                else:
                    demo.check_engine()
                screen.refresh()
                time.sleep(0.05)
    except KeyboardInterrupt:
        if seconds is not None:
            raise
        demo.say("Ctrl-C: the shop closes; a second Ctrl-C ends the demo without a report")
    finally:
        play.stop()
    while play.failed is None and figures.engine == "down" and not demo.engine_is_back():
        time.sleep(0.1)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder for all files, removed at the end; the workspace is copied to `keep`. SIGTERM and SIGHUP end the demo cleanly."""

    def leave(number: int, _: Any) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    interrupt = signal.getsignal(signal.SIGINT)
    folder = make_folder()
    try:
        yield folder
    finally:
        if keep is not None and (folder / "workspace").exists():
            shutil.copytree(folder / "workspace", keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in {**before, signal.SIGINT: interrupt}.items():
            signal.signal(number, handler)
