"""Log file of commands: `logs/headwater.log` in the workspace, one JSON object per line. `headwater run` and `headwater
serve` log everything, other commands log failures.

`HEADWATER_LOG` is the level: debug (every tick), info (the default), warning, error, or off. The file is rotated at 10
MB, and five old files are kept. Passwords are removed from every line.
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
"""Prefix of the line that names the log file of a failure."""
SELF_EXPLANATORY = (
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
"""Errors in the user's request, or in the choice of the workspace: their message is complete, and they are not logged."""
logger = logging.getLogger("headwater.run")


class JsonLines(logging.Formatter):
    """Formats a log record as a line of JSON: time, level, logger, process, message, and the record's facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "at": timestamp(from_us(int(record.created * 1e6))),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(_plain(line), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value as JSON types, without passwords."""
    # imported here, because `headwater --help` imports nothing heavy
    from headwater.catalog.connectors import without_password

    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float)) else without_password(str(value))


def file_of(workspace: Path) -> Path:
    """Return the path of a workspace's log file."""
    return workspace / "logs" / "headwater.log"


@contextmanager
def logged(workspace: Path | None, what: str) -> Iterator[None]:
    """Log the events within the block, with its beginning, its end, and an error that ends it; the error gets the log's
    path as a note."""
    wanted = _level()
    handler = None if workspace is None or wanted == "off" else _handler(file_of(workspace))
    if handler is None:
        yield
        return
    handler.setLevel(wanted.upper())
    # replaces the default output of warnings to stderr, which the new handler suppresses
    plain = logging.StreamHandler(sys.stderr)
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
        except click.exceptions.Exit as end:  # the reason of the exit was already printed
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
    """Log an error that ends the block, unless it is logged already, and add the log's path to it. Errors of
    `SELF_EXPLANATORY` are not logged."""
    try:
        yield
    except (*SELF_EXPLANATORY, click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        logged_before = any(note.startswith(WHERE) for note in getattr(error, "__notes__", ()))
        if not logged_before and (where := log_failure(workspace, f"{what} failed", _facts(error), error)):
            error.add_note(f"{WHERE}{where}")
        raise


def log_failure(
    workspace: Path | None, message: str, facts: Mapping[str, Any], error: Exception | None = None
) -> Path | None:
    """Append one line to the log, which processes share. Returns the path of the log, or None if there is no log."""
    if workspace is None or _level() == "off" or (handler := _handler(file_of(workspace))) is None:
        return None
    trace = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord(logger.name, logging.ERROR, "", 0, message, (), trace)
    record.facts = facts
    handler.handle(record)
    handler.close()
    return file_of(workspace).absolute()


def print_log_path(workspace: Path | None) -> None:
    """Print the path of the log, if there is one."""
    if workspace is not None and _level() != "off" and file_of(workspace).exists():
        click.echo(f"{WHERE}{file_of(workspace).absolute()}", err=True)


def _level() -> str:
    wanted = os.environ.get(VARIABLE, "info").lower()
    if wanted not in LEVELS:
        raise UsageError(
            f"{VARIABLE} is one of {', '.join(LEVELS)}, not {wanted!r}", variable=VARIABLE, value=wanted
        )
    return wanted


def _facts(error: Exception) -> dict[str, Any]:
    return {"error": str(error), "facts": error.facts if isinstance(error, HeadwaterError) else {}}


def _handler(file: Path) -> RotatingFileHandler | None:
    """Return a handler for the log file; None if it cannot be written, which must not stop the command."""
    try:
        file.parent.mkdir(exist_ok=True)
        handler = RotatingFileHandler(file, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError:
        return None
    handler.setFormatter(JsonLines())
    return handler
