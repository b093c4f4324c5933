"""Checks of arguments that users pass, made before anything else, so that an error names the mistake in the user's words."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Any

import numpy as np

from headwater.core.clock import Microseconds, parse_span_us
from headwater.core.errors import UsageError, shown
from headwater.core.positions import Token


def whole_number(value: Any, what: str, *, least: int = 0, hint: str | None = None) -> int:
    """Return a whole number of Python or numpy as an int; UsageError for any other value, including True, 2.0 and '2'."""
    try:
        if isinstance(value, (bool, np.bool_, np.timedelta64)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise UsageError(
            f"{what} is a whole number from {least} up, not {shown(value)}",
            hint=hint,
            argument=what,
            value=value,
        )
    return number


def tick_token(value: Any, what: str, *, least: int = 0, hint: str | None = None) -> Token:
    """Return a tick from its number or the text of a token."""
    if isinstance(value, str):
        if (found := Token.parse(value)) is None or found.number < least:
            raise UsageError(
                f"{what} is a tick, and {shown(value)} is none",
                hint=hint or f"{what}=41, or the text of a token: {what}='41-5f0c6c1b9e2d4a7b'",
            )
        return found
    return Token(whole_number(value, what, least=least, hint=hint))


def label(value: Any, what: str) -> str:
    """Return the name of a producer, cursor or the like; UsageError unless it is text that prints on one line."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise UsageError(
            f"{shown(value)} cannot be the name of a {what}", hint="use 1 to 200 printable characters"
        )
    return value


def text(value: Any, what: str, hint: str | None = None) -> str:
    """Return a text; UsageError for any other type."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is a text, not {shown(value)}", hint=hint, argument=what, value=value)
    return value


def kept_text(value: Any, what: str, hint: str | None = None) -> str:
    """Return a text that can be stored in a column or a file; UsageError for one with an unpaired surrogate."""
    try:
        text(value, what, hint).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} has characters that no file can hold: {shown(value)}", hint=hint) from None
    return str(value)


def span_us(value: Any, what: str) -> Microseconds:
    """Return a span of time from text or a timedelta in microseconds; UsageError for a bare number, which has no unit."""
    if not isinstance(value, (str, timedelta)):
        raise UsageError(
            f"{what} is a span of time, not {shown(value)}",
            hint=f"write it as a number and a unit, such as {what} = '10 minutes' or '7 days'",
            argument=what,
            value=value,
        )
    return parse_span_us(value)
