"""The server process: binds, serves until it is signalled to stop, and then finishes requests."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import uvicorn

from headwater.core.errors import UsageError
from headwater.web.app import App
from headwater.web.request_limits import protocol_of, raise_files_max
from headwater.web.server_settings import ServerSettings
from headwater.web.tokens import OPENING, is_closed, tokens

if TYPE_CHECKING:
    from headwater.workspace import Workspace

START_S = 30.0


class _Server(uvicorn.Server):
    """uvicorn's server, which ends the application's streams before it waits for them, and restores signal handlers at
    the end."""

    def __init__(self, config: uvicorn.Config, app: App, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def check(settings: ServerSettings, workspace: Workspace) -> None:
    """Raise UsageError if the server would be open to other machines without tokens, or its settings are invalid."""
    if not settings.on_loopback and not settings.insecure and not tokens(workspace.log):
        raise UsageError(
            f"{settings.host} can be reached from other machines, and the workspace has no tokens",
            hint="headwater token create NAME --read --write creates one; --insecure allows access without tokens",
        )
    if (settings.certificate is None) != (settings.key is None):
        raise UsageError("TLS needs both --certificate and --key")
    if settings.certificate is not None and settings.key is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate, settings.key)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the certificate in {settings.certificate} cannot be used with the key in {settings.key}",
                detail=str(error),
            ) from None


def warning(settings: ServerSettings, workspace: Workspace) -> str | None:
    """Return a warning for the operator of a server that starts without a token; None if there is a token, or never was
    one."""
    if tokens(workspace.log):
        return None
    if settings.insecure:
        return "warning: --insecure, and there is no token: every client that reaches the server may read and write"
    if not is_closed(workspace.log):
        return None
    return (
        "warning: all tokens of this workspace were revoked: every request but /health and signed webhooks is answered 401\n"
        f"  {OPENING}"
    )


def bind(settings: ServerSettings) -> socket.socket:
    """Return the socket to listen on; UsageError if the address is not available."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2_048)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"the server cannot listen on {settings.host} port {settings.port}: {error}",
            hint="--port 0 picks a free port",
        ) from None


def address(settings: ServerSettings, listening: socket.socket) -> str:
    """Return the URL of the server."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "https" if settings.certificate is not None else "http"
    return f"{scheme}://{host}:{listening.getsockname()[1]}/"


def serve(workspace: Workspace, settings: ServerSettings, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `started` is called with the URL once requests are accepted."""
    check(settings, workspace)
    with contextlib.closing(bind(settings)) as listening:
        where = address(settings, listening)
        server = _make_server(App(workspace, settings), settings, lambda: started(where))
        server.run(sockets=[listening])


@contextlib.contextmanager
def serve_in_thread(workspace: Workspace, settings: ServerSettings) -> Iterator[str]:
    """Serve in a thread during the block, next to an engine of this process; yields the URL."""
    check(settings, workspace)
    with contextlib.closing(bind(settings)) as listening:
        up = threading.Event()
        server = _make_server(App(workspace, settings, with_engine=True), settings, up.set)
        thread = threading.Thread(
            target=lambda: server.run(sockets=[listening]), name="headwater-web", daemon=True
        )
        thread.start()
        while not up.wait(0.1):
            if not thread.is_alive():
                raise UsageError("the server did not start", hint="see its log")
        try:
            yield address(settings, listening)
        finally:
            server.should_exit = True
            thread.join(settings.stop_s + START_S)


def _make_server(app: App, settings: ServerSettings, started: Callable[[], None]) -> _Server:
    raise_files_max(settings)
    config = uvicorn.Config(
        app,
        loop="auto",
        http=protocol_of(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(settings.stop_s),
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    return _Server(config, app, started)
