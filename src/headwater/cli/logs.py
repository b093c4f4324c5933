"""What commands leave behind of what happened: `logs/headwater.log` in the workspace, a JSON object a line. `headwater run` and
`headwater serve` tell all of it, the others that they failed.

`HEADWATER_LOG` is the level: debug (every tick), info (the default), warning, error, or off. A file of 10 MB is followed by a new one,
and five old ones are kept. Passwords are taken out of every line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import click

from headwater.core import errors as e
from headwater.core.clock import from_us, timestamp
from headwater.core.errors import HeadwaterError, UsageError

VARIABLE = "HEADWATER_LOG"
LEVELS = ("debug", "info", "warning", "error", "off")
FILE_BYTES_MAX = 10 << 20
FILES_KEPT = 5
WHERE = "log: "
"""How the line begins that says where the log of a failure is."""
SAY_IT_ALL = (
    e.UsageError,
    e.SchemaError,
    e.BadRowError,
    e.TopicNotFoundError,
    e.TopicExistsError,
    e.ViewNotFoundError,
    e.ViewExistsError,
    e.SourceNotFoundError,
    e.SourceExistsError,
    e.SinkNotFoundError,
    e.SinkExistsError,
    e.AlertNotFoundError,
    e.AlertExistsError,
    e.RowNotFoundError,
    e.LetterNotFoundError,
    e.EngineRunningError,
    e.NotAWorkspaceError,
    e.WorkspaceMissingError,
)
"""Errors in what was asked for, or in where."""
logger = logging.getLogger("headwater.run")


class JsonLines(logging.Formatter):
    """A record as a line of JSON: when, how grave, by whom, what, and the facts it was given."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told: dict[str, Any] = {
            "at": timestamp(from_us(int(record.created * 1e6))),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(_plain(told), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it, without passwords."""
    from headwater.catalog.connectors import without_password  # `headwater --help` loads nothing heavy

    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float)) else without_password(str(value))


def file_of(workspace: Path) -> Path:
    """Where the log of a workspace is."""
    return workspace / "logs" / "headwater.log"


@contextmanager
def logged(workspace: Path | None, what: str) -> Iterator[None]:
    """Within the block what happens is logged, with its beginning, its end, and the error that ends it, which then says where."""
    wanted = _level()
    handler = None if workspace is None or wanted == "off" else _handler(file_of(workspace))
    if handler is None:
        yield
        return
    handler.setLevel(wanted.upper())
    plain = logging.StreamHandler(sys.stderr)  # what came to stderr by itself while there was no handler
    plain.setLevel(logging.WARNING)
    plain.addFilter(lambda record: record.name == "headwater")
    parent = logging.getLogger("headwater")
    before = parent.level
    parent.setLevel(wanted.upper())
    parent.addHandler(handler)
    parent.addHandler(plain)
    try:
        logger.info("%s begins", what)
        try:
            yield
        except click.exceptions.Exit as end:  # whatever it is, it has been said
            logger.log(
                logging.ERROR if end.exit_code else logging.INFO,
                "%s ends with status %d",
                what,
                end.exit_code,
            )
            raise
        except Exception as error:
            logger.exception("%s failed", what, extra={"facts": _facts(error)})
            error.add_note(f"{WHERE}{handler.baseFilename}")
            raise
        logger.info("%s ends", what)
    finally:
        parent.removeHandler(plain)
        parent.removeHandler(handler)
        parent.setLevel(before)
        handler.close()


@contextmanager
def failure_logged(workspace: Path, what: str) -> Iterator[None]:
    """An error that ends the block is logged, unless it was already, and says where; one that says all there is to say is not."""
    try:
        yield
    except (*SAY_IT_ALL, click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        is_told = any(note.startswith(WHERE) for note in getattr(error, "__notes__", ()))
        if not is_told and (where := log_failure(workspace, f"{what} failed", _facts(error), error)):
            error.add_note(f"{WHERE}{where}")
        raise


def log_failure(
    workspace: Path | None, message: str, facts: Mapping[str, Any], error: Exception | None = None
) -> Path | None:
    """Write one line, beside whoever else writes; where it is, or None if there is no log."""
    if workspace is None or _level() == "off" or (handler := _handler(file_of(workspace))) is None:
        return None
    trace = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord(logger.name, logging.ERROR, "", 0, message, (), trace)
    record.facts = facts
    handler.handle(record)
    handler.close()
    return file_of(workspace).absolute()


def say_where(workspace: Path | None) -> None:
    """Say where the log of a failure is, if there is one."""
    if workspace is not None and _level() != "off" and file_of(workspace).exists():
        click.echo(f"{WHERE}{file_of(workspace).absolute()}", err=True)


def _level() -> str:
    wanted = os.environ.get(VARIABLE, "info").lower()
    if wanted not in LEVELS:
        raise UsageError(f"{VARIABLE} is one of {', '.join(LEVELS)}, not {wanted!r}")
    return wanted


def _facts(error: Exception) -> dict[str, Any]:
    return {"error": str(error), "facts": error.facts if isinstance(error, HeadwaterError) else {}}


def _handler(file: Path) -> RotatingFileHandler | None:
    """None where nothing can be written: no reason not to run."""
    try:
        file.parent.mkdir(exist_ok=True)
        handler = RotatingFileHandler(file, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError:
        return None
    handler.setFormatter(JsonLines())
    return handler
