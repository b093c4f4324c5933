"""Parses query-string parameters; an error names the parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from starlette.requests import Request

from headwater.core.errors import UsageError
from headwater.core.json_csv import text_decoder
from headwater.core.positions import Receipt, Token, split_token
from headwater.core.types import format_type
from headwater.log.protocol import PartitionInfo

_PLACES = re.compile(r"[0-9]{1,9}@[0-9]{1,18}(,[0-9]{1,9}@[0-9]{1,18})*\Z")
"""Partitions and offsets with a plausible number of digits; longer numbers are rejected."""
_RECEIPT = re.compile(r"[^:;]+:[0-9]+@[0-9]+-[0-9]+")
Start = str | int | dict[int, int] | datetime


def refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Raise UsageError for an unknown parameter: a misspelt one must not be ignored."""
    if not request.scope["query_string"]:
        return
    for name in request.query_params:
        if name not in known:
            raise UsageError(
                f"there is no parameter {name!r}",
                hint=f"the parameters are {', '.join(known)}",
                parameter=name,
            )


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return a whole number within bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
        raise UsageError(f"{name} is a whole number from {least:,} to {most:,}, not {text!r}", parameter=name)
    return int(text)


def seconds(request: Request, name: str, default: float, most: float) -> float:
    """Return a duration in seconds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise UsageError(f"{name} is a number of seconds from 0 to {most:g}, not {text!r}", parameter=name)
    return found


def flag(request: Request, name: str) -> bool:
    """Whether a flag is set: `?follow`, or `?follow=true`."""
    text = request.query_params.get(name)
    if text is None:
        return False
    if text.lower() not in ("", "true", "1", "yes", "false", "0", "no"):
        raise UsageError(f"{name} is true or false, not {text!r}", parameter=name)
    return text.lower() not in ("false", "0", "no")


def as_of(request: Request) -> int | str | datetime | None:
    """Return the tick or time of `as_of`; None if it is not given."""
    text = request.query_params.get("as_of")
    return None if text is None else as_of_text(text)


def as_of_text(text: str) -> int | str | datetime:
    """Parse a tick, the token of a tick, or a time."""
    if (token := Token.parse(text)) is not None:
        return text if token.id else token.number
    return moment(text, "as_of is a tick, or a time")


def after(request: Request) -> Receipt | str | None:
    """Return the receipt or position of `after`; None if it is not given."""
    text = request.query_params.get("after")
    return None if text is None else after_text(text)


def after_text(text: str) -> Receipt | str:
    """Parse the receipt of an append; other text is returned as the position of a source."""
    return Receipt.parse(text) if _RECEIPT.match(text) else text


def moment(text: str, what: str) -> datetime:
    """Parse an ISO time; UTC if it has no zone. An unescaped `+` arrives as a space and is accepted."""
    try:
        found = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise UsageError(f"{what} such as 2026-01-31T12:00:00Z, not {text!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def start_of(text: str, infos: Mapping[int, PartitionInfo]) -> Start:
    """Return the start of a read: `earliest`, `latest`, `17`, `0@17,1@4`, the last `-10` records of each partition, or
    a time."""
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"-[0-9]{1,9}", text):
        return {p: max(info.first, info.end + int(text)) for p, info in infos.items()}
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if _PLACES.match(split_token(text)[0]):
        return places(text)
    return moment(text, "from is earliest, latest, an offset, partition@offset,..., -rows, or a time")


def places(text: str) -> dict[int, int]:
    """Parse `0@17,1@4` to {0: 17, 1: 4}; a commit that follows it is read by `commit_of`."""
    text, _ = split_token(text)
    if not _PLACES.match(text):
        raise UsageError(
            f"{text!r} is not a position", hint="partition@offset,..., such as 0@17,1@4", position=text
        )
    return {int(p): int(offset) for p, offset in (part.split("@") for part in text.split(","))}


def commit_of(text: str | None) -> Token | None:
    """Return the commit token at the end of a position from `place_text`, or None."""
    return None if text is None else split_token(text)[1]


def place_text(positions: Mapping[int, int], commit: Token | None = None) -> str:
    """Return {0: 17, 1: 4} as `0@17,1@4~1043-5f0c6c1b9e2d4a7b`, with the last commit that was read, if there is one."""
    text = ",".join(f"{p}@{offset}" for p, offset in sorted(positions.items()))
    return text if commit is None else f"{text}~{commit}"


def equalities(
    request: Request, schema: pa.Schema, reserved: Sequence[str], what: str
) -> dict[str, list[Any]]:
    """Return the parameters that name columns: the accepted values by column."""
    names = {name.lower(): name for name in schema.names}
    found: dict[str, list[Any]] = {}
    for given, text in request.query_params.multi_items():
        if given in reserved:
            continue
        name = given if given in schema.names else names.get(given.lower())
        if name is None:
            raise UsageError(
                f"{what} has no column {given!r}",
                hint=f"its columns are {', '.join(schema.names)}",
                column=given,
            )
        kind = schema.field(name).type
        if pa.types.is_nested(kind):
            raise UsageError(
                f"column {name!r} is {format_type(kind)}, which cannot be compared here",
                hint="POST /query can compare it",
                column=name,
            )
        try:
            value = text_decoder(kind)(text)
            pa.scalar(value, kind)
        except (ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException):
            raise UsageError(
                f"{text!r} is not a value of column {name!r}, which is {format_type(kind)}",
                column=name,
                value=text,
            ) from None
        found.setdefault(name, []).append(value)
    return found
