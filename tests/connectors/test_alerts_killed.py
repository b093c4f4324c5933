"""The process that looks at alerts is killed (SIGKILL) at any moment, and others look beside it: each episode is told of once.

On a topic that is so by construction. A hook may get a notice again, where the process dies between the request and the record of
it: with the same idempotency key, and the same words.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

import headwater as hw
from headwater.sinks.base.http_post import KEY_HEADER
from headwater.testing import inspect_workspace
from tests.connectors.alert_worker import Workers, kill, workers

ROUNDS = 40 if os.environ.get("HEADWATER_LONG") == "1" else 4
PATIENCE_S = 60.0


class Hook:
    """A receiver of notices, which may do something to their sender."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.news = threading.Condition()
        self.before_answer: Callable[[], None] = lambda: None
        self.after_answer: Callable[[], None] = lambda: None
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with hook.news:
                    hook.got.append((self.headers[KEY_HEADER], body))
                    hook.news.notify_all()
                hook.before_answer()
                self.send_response(204)
                self.end_headers()
                hook.after_answer()

            def log_message(self, *_: object) -> None:
                """Not on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def others() -> Iterator[Workers]:
    with workers() as started:
        yield started


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


class Scene:
    """A topic, a cursor that is behind or not, and alerts on that."""

    def __init__(self, ws: hw.Workspace, hook: Hook) -> None:
        self.ws = ws
        self.hook = hook
        assert ws.path is not None
        self.folder = ws.path
        ws.sql("CREATE TOPIC mails (id BIGINT)")
        self.cursor = ws.topic("mails").cursor("mailer")
        self.cursor.seek("earliest")
        when = "METRIC headwater_cursor_lag_rows{cursor = 'mailer'} WHEN value > 0"
        ws.sql(f"CREATE ALERT hooked ON {when} NOTIFY WEBHOOK WITH (url = '{hook.url}', timeout = '5 s')")
        ws.sql(f"CREATE ALERT told ON {when} FOR '20 ms' NOTIFY TOPIC WITH (topic = 'alarms')")

    def get_behind(self) -> None:
        self.ws.topic("mails").append([{"id": 1}])

    def catch_up(self) -> None:
        for _ in self.cursor.read():
            self.cursor.commit()

    def notices(self) -> list[dict[str, Any]]:
        return [row for batch in self.ws.topic("alarms").read("earliest") for row in batch.to_pylist()]

    def hooked(self) -> list[tuple[str, str]]:
        """The notices of the hook, each once: the episode and the event."""
        return list(dict.fromkeys((body["episode"], body["event"]) for _, body in self.hook.got))

    def are_told(self, count: int) -> bool:
        return len(self.hooked()) == len(self.notices()) == count

    def judge(self, episodes: int) -> None:
        for told in (self.hooked(), [(row["episode"], row["event"]) for row in self.notices()]):
            assert [event for _, event in told] == ["fired", "over"] * episodes
            assert len({episode for episode, _ in told}) == episodes
            assert [e for e, event in told if event == "fired"] == [e for e, event in told if event == "over"]
        words = {key: orjson.dumps(body, option=orjson.OPT_SORT_KEYS) for key, body in self.hook.got}
        assert len(words) == 2 * episodes
        assert all(words[k] == orjson.dumps(b, option=orjson.OPT_SORT_KEYS) for k, b in self.hook.got)
        assert {row["state"] for row in self.ws.sql("SHOW ALERTS").to_pylist()} == {"quiet"}  # type: ignore[union-attr]


def wait_until(done: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    """With something to do while it is not so."""
    for _ in range(int(PATIENCE_S * 100)):
        if done():
            return
        meanwhile()
        threading.Event().wait(0.01)
    raise AssertionError("it is never told")


def test_each_episode_is_told_once_however_often_the_process_is_killed(
    tmp_path: Path, hook: Hook, others: Workers
) -> None:
    chance = random.Random(4)
    with hw.open(tmp_path / "ws", durability="os") as ws:
        scene = Scene(ws, hook)
        running = others.start("beside", scene.folder)
        answers: Counter[str] = Counter()

        def another() -> None:
            """One that is killed is followed by the next; and some are killed in whatever they do."""
            nonlocal running
            if chance.random() < 0.02:
                kill(running)
            if not _lives(running):
                running = others.start("beside", scene.folder)

        def kill_before() -> None:
            answers["before"] += 1
            hook.before_answer = lambda: None
            kill(running)

        def kill_after() -> None:
            answers["after"] += 1
            hook.after_answer = lambda: None
            kill(running)

        for number in range(ROUNDS):
            for event in (1, 2):
                if number % 2 == 0:
                    hook.before_answer = kill_before
                else:
                    hook.after_answer = kill_after
                scene.get_behind() if event == 1 else scene.catch_up()
                wait_until(partial(scene.are_told, 2 * number + event), another)
        wait_until(lambda: _all_noted(ws), another)
        kill(running)
        scene.judge(ROUNDS)
        assert answers == {"before": ROUNDS, "after": ROUNDS}, "killed at each of these moments"
    assert len(hook.got) >= 3 * ROUNDS, "where it dies before it knows, it tells again"


def test_of_processes_that_look_at_once_one_tells(tmp_path: Path, hook: Hook, others: Workers) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        scene = Scene(ws, hook)
        started = [others.start("again", scene.folder) for _ in range(2)]
        for number in range(3):
            scene.get_behind()
            wait_until(partial(scene.are_told, 2 * number + 1))
            scene.catch_up()
            wait_until(partial(scene.are_told, 2 * number + 2))
        wait_until(lambda: _all_noted(ws))
        assert all(map(_lives, started))
        for one in started:
            kill(one)
        scene.judge(3)
    assert len(hook.got) == 6, "nobody told what another had told"


def test_who_finds_another_engine_in_its_place_says_nothing_more(
    tmp_path: Path, hook: Hook, others: Workers
) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        scene = Scene(ws, hook)
        running = others.start("beside", scene.folder)
        wait_until(lambda: inspect_workspace(ws).engine() is not None)
        assert not inspect_workspace(ws).supervisor.evaluates_alerts()
        scene.get_behind()
        for _ in range(20):
            inspect_workspace(ws).alerts.notify()  # as an engine that thaws would
            inspect_workspace(ws).evaluate_alerts()
        wait_until(partial(scene.are_told, 1))
        wait_until(lambda: _all_noted(ws))
        assert len(hook.got) == 1
        kill(running)
        wait_until(lambda: inspect_workspace(ws).engine() is None)
        scene.catch_up()
        inspect_workspace(ws).evaluate_alerts()
        scene.judge(1)


def _lives(worker: int) -> bool:
    try:
        os.kill(worker, 0)
    except ProcessLookupError:
        return False
    return True


def _all_noted(ws: hw.Workspace) -> bool:
    return not any(row["untold"] for row in ws.sql("SHOW ALERTS").to_pylist())  # type: ignore[union-attr]
