"""What tests of the server share: an application without a socket, a server in a thread, and a server in a process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pyarrow as pa

import headwater as hw
from headwater.web.app import App
from headwater.web.server_settings import ServerSettings
from tests.repo.tree import ROOT

NDJSON = {"content-type": "application/x-ndjson"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
T = TypeVar("T")
PROBLEM = "application/problem+json"


class AppClient:
    """A client of the application itself, whose event loop runs in a thread of its own."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[Any] = asyncio.Queue()
        self._lifespan = asyncio.run_coroutine_threadsafe(
            app({"type": "lifespan", "state": {}}, self._messages.get, self._replies.put), self._loop
        )
        self._say("lifespan.startup")
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request, answered in full."""
        return self._wait(self._client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """POST."""
        return self.request("POST", path, **options)

    def close(self) -> None:
        """End the application, then the loop."""
        self._wait(self._client.aclose())
        self._say("lifespan.shutdown")
        self._lifespan.result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _say(self, what: str) -> None:
        self._wait(self._messages.put({"type": what}))
        reply = self._wait(self._replies.get())
        assert reply["type"] == f"{what}.complete", reply

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


@contextlib.contextmanager
def client_of(ws: hw.Workspace, settings: ServerSettings | None = None) -> Iterator[AppClient]:
    """A client of an application over a workspace."""
    with contextlib.closing(AppClient(App(ws, settings))) as client:
        yield client


def arrow_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class ServerProcess:
    """`headwater serve`, or another command that serves, in a process of its own."""

    def __init__(self, workspace: Path, *, command: Sequence[str] = ("serve", "--port", "0")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headwater", "-w", str(workspace), *command],
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"serving (\S+)/", line)
        assert found is not None, line + self.process.stderr.read()
        self.url = found[1]

    def stop(self) -> tuple[int, str]:
        """Ask it to end; its exit status, and what it said."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=60)
