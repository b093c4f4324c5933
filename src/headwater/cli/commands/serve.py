"""`headwater serve` and `headwater token`: the HTTP server of a workspace, and its access tokens."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.logs import logged
from headwater.cli.output import print_json, print_listing
from headwater.cli.session import CommandSession, json_option, pass_session
from headwater.core.clock import parse_span_us
from headwater.core.errors import UsageError
from headwater.core.settings import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater import Workspace
    from headwater.web.server_settings import ServerSettings

PORT = 8321


def address_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the address and the permitted callers of a server."""
    for option in reversed(
        (
            click.option(
                "--host",
                default="127.0.0.1",
                show_default=True,
                metavar="ADDRESS",
                help="The address to listen on.",
            ),
            click.option(
                "--port",
                type=click.IntRange(0, 65_535),
                default=PORT,
                show_default=True,
                metavar="N",
                help="The port; 0 is any free port.",
            ),
            click.option(
                "--allow-host",
                "allow_hosts",
                multiple=True,
                metavar="NAME",
                help="A permitted value of the Host header, besides localhost.",
            ),
            click.option(
                "--allow-origin",
                "allow_origins",
                multiple=True,
                metavar="ORIGIN",
                help="An origin whose web pages may send requests, such as https://shop.example.",
            ),
            click.option(
                "--certificate",
                type=click.Path(exists=True, dir_okay=False),
                metavar="FILE",
                help="Certificate for TLS; needs --key.",
            ),
            click.option(
                "--key",
                type=click.Path(exists=True, dir_okay=False),
                metavar="FILE",
                help="Private key of the certificate.",
            ),
            click.option(
                "--insecure",
                is_flag=True,
                help="Serve without tokens: also to other machines, and after all tokens were revoked.",
            ),
        )
    ):
        function = option(function)
    return function


def settings_of(options: dict[str, Any], limits: dict[str, Any] | None = None) -> ServerSettings:
    """Return the server settings from options. `limits` is the options for limits, as the user wrote them."""
    from headwater.web.server_settings import ServerSettings

    read: dict[str, tuple[str, Callable[[Any], float]]] = {
        "body_limit": ("body_bytes_max", parse_bytes),
        "body_rows": ("body_rows_max", int),
        "body_timeout": ("body_s", _seconds),
        "query_timeout": ("query_s", _seconds),
        "connections": ("connections_max", int),
    }
    said = {name: value for name, value in (limits or {}).items() if value is not None}
    sized: dict[str, Any] = {read[name][0]: read[name][1](value) for name, value in said.items()}
    for origin in options["allow_origins"]:
        if origin != "null" and "://" in origin and not origin.endswith("/"):
            continue
        raise UsageError(
            f"{origin!r} is not an origin",
            hint="write it without a path: --allow-origin https://shop.example",
            option="allow_origin",
            value=origin,
        )
    return ServerSettings(**options, **sized)


def _seconds(text: str) -> float:
    seconds = parse_span_us(text) / 1e6
    if seconds <= 0:
        raise UsageError(
            f"a timeout must be positive, not {text!r}", hint="for example '30 seconds'", value=text
        )
    return seconds


_NONE_LEFT = "all tokens are revoked: servers answer 401 to every request except /health and signed webhooks"
LIMITS = ("body_limit", "body_rows", "body_timeout", "query_timeout", "connections")


@click.command()
@address_options
@click.option("--body-limit", metavar="SIZE", help="Maximum size of a request body. Default: 64 MB.")
@click.option(
    "--body-rows",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of rows of a request body. Default: 1,000,000.",
)
@click.option("--body-timeout", metavar="SPAN", help="Time limit for receiving a body. Default: 60 seconds.")
@click.option("--query-timeout", metavar="SPAN", help="Time limit of a query. Default: 30 seconds.")
@click.option(
    "--connections",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of connections. Default: 4,000.",
)
@pass_session
def serve(session: CommandSession, /, **options: Any) -> None:
    """Serve the HTTP API and the console.

    The console is at /, and /docs describes the API: POST /topics/TOPIC appends rows, GET /views/VIEW reads a view. The
    server runs no engine: `headwater run` does, in another process, or with --console in the same one. Once a token was
    created (`headwater token create`), every request needs one, also when all are revoked. Ctrl-C stops the server.
    """
    from headwater.web.server import serve as serve_until_stopped

    log_plainly()
    settings = settings_of(options, {name: options.pop(name) for name in LIMITS})
    with session.open() as ws, logged(ws.path, "serve"):
        serve_until_stopped(
            ws, settings, lambda where: _print_address(ws, settings, f"{where}  Ctrl-C stops")
        )
    click.echo("stopped", err=True)


@contextmanager
def served(ws: Workspace, port: int | None) -> Iterator[None]:
    """Serve during the block, to this machine only."""
    from headwater.web.server import serve_in_thread
    from headwater.web.server_settings import ServerSettings

    log_plainly()
    settings = ServerSettings(port=PORT if port is None else port)
    with serve_in_thread(ws, settings) as where:
        _print_address(ws, settings, where)
        yield


def _print_address(ws: Workspace, settings: ServerSettings, where: str) -> None:
    from headwater.web.server import warning

    click.echo(f"serving {where}", err=True)
    if (said := warning(settings, ws)) is not None:
        click.echo(said, err=True)


def log_plainly() -> None:
    """Log the server's messages to stderr, one per line."""
    logger = logging.getLogger("headwater.web")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the HTTP server.

    Once a token was created, every request needs one.
    """


@token.command("create")
@click.argument("name")
@click.option(
    "--read", "scopes", multiple=True, flag_value="read", help="Permit reading topics and views, and queries."
)
@click.option(
    "--write",
    "scopes",
    multiple=True,
    flag_value="write",
    help="Permit appending rows and acting on dead letters.",
)
@json_option
@pass_session
def create_token(session: CommandSession, name: str, scopes: tuple[Any, ...], as_json: bool) -> None:
    """Create a token called NAME and print it.

    It permits reading unless --write is given, and is printed only now: the workspace stores its hash.
    """
    from headwater.web.tokens import create

    wanted = scopes or ("read",)
    with session.open() as ws:
        secret = create(ws.log, name, wanted)
    if as_json:
        print_json({"name": name, "scopes": list(wanted), "token": secret})
    else:
        click.echo(secret)


@token.command("list")
@json_option
@pass_session
def list_tokens(session: CommandSession, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    from headwater.web.tokens import is_closed, tokens

    with session.open() as ws:
        closed = is_closed(ws.log)
        found = [
            {
                "token": t.name,
                "scopes": ", ".join(t.scopes),
                "created_at": t.created_at,
                "sha256": t.digest[:12],
            }
            for t in tokens(ws.log)
        ]
    none = "no tokens: the server accepts every request that reaches it"
    print_listing(
        found, as_json=as_json, empty=_NONE_LEFT if closed else none, optional=("sha256", "created_at")
    )


@token.command("revoke")
@click.argument("name")
@pass_session
def revoke_token(session: CommandSession, name: str) -> None:
    """Revoke the token called NAME.

    Servers apply this within a second. When all tokens are revoked they reject every request.
    """
    from headwater.web.tokens import OPENING, revoke, tokens

    with session.open() as ws:
        revoke(ws.log, name)
        left = tokens(ws.log)
    click.echo(f"revoked {name}")
    if not left:
        click.echo(f"{_NONE_LEFT}\n  {OPENING}", err=True)
