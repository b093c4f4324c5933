"""`headwater demo`: a shop with a database, sinks and an engine that is killed, in a few minutes.

The demo is an ordinary program that uses Headwater, in `examples/shop`; the wheel has it as `headwater.examples.shop`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import click

from headwater.core.errors import ExtraMissingError, HeadwaterError, UsageError
from headwater.core.extras import install_command

_CHECKOUT = Path(__file__).resolve().parents[4]
_HINT = f"{install_command('demo')} installs what it needs: a temporary Postgres and Redis"


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(5, 86_400),
    metavar="N",
    envvar="HEADWATER_DEMO_SECONDS",
    default=120.0,
    show_default=True,
    help="How long the shop is open; also $HEADWATER_DEMO_SECONDS.",
)
@click.option("--live", is_flag=True, help="Keep the shop open until Ctrl-C, then report.")
@click.option(
    "--seed", type=int, default=7, show_default=True, metavar="N", help="Seed of the random events."
)
@click.option("--no-kill", is_flag=True, help="Do not kill the engine half-way.")
@click.option(
    "--keep",
    metavar="PATH",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the workspace in this folder.",
)
def demo(seconds: float, live: bool, seed: int, no_kill: bool, keep: Path | None) -> None:
    """Run a demo shop: Postgres, views, sinks, a crash, verify.

    Orders are captured from Postgres, kept in views and written to sinks; half-way the engine is killed and started again;
    at the end every view and every sink is verified. The demo starts its own Postgres and Redis, reachable from this
    machine only, and removes everything at the end. Exit status 1 if something differs.
    """
    from rich.console import Console

    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(
            f"the folder {str(keep)!r} is not empty", hint="name a new folder", option="keep", value=str(keep)
        )
    package = _package()
    try:
        shop: Any = importlib.import_module(f"{package}.demo")
        servers: Any = importlib.import_module(f"{package}.servers")
    except ImportError as error:
        raise _missing(error) from error
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    try:
        status = shop.conduct(
            console, seconds=None if live else seconds, seed=seed, kill=not no_kill, keep=keep
        )
    except servers.MissingError as error:
        raise _missing(error) from None
    except RuntimeError as error:
        first, _, rest = str(error).partition("\n")
        raise HeadwaterError(first, detail=rest or None) from error
    click.get_current_context().exit(status)


def _missing(error: Exception) -> ExtraMissingError:
    return ExtraMissingError(
        "the demo needs the extra 'demo', which is not installed",
        detail=str(error),
        hint=_HINT,
        extra="demo",
    )


def _package() -> str:
    """Return the package of the demo: of the wheel, or of the checkout that this installation runs from."""
    if importlib.util.find_spec("headwater.examples") is not None:
        return "headwater.examples.shop"
    if (_CHECKOUT / "examples" / "shop" / "demo.py").exists():
        if str(_CHECKOUT) not in sys.path:
            sys.path.insert(0, str(_CHECKOUT))
        return "examples.shop"
    raise UsageError("the demo is not part of this installation", hint=_HINT)
