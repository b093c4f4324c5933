"""Parser of search filters in text form: `country=ch`, `price<=10`."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from headwater.core.errors import UsageError
from headwater.core.json_csv import text_decoder
from headwater.core.types import format_type

_FILTER = re.compile(r"^([^<>=!]+?)\s*(<=|>=|!=|=|<|>)(.*)$", re.DOTALL)


def read_filter(text: str, schema: pa.Schema) -> tuple[str, str, Any]:
    """Return a column, an operator and a value of the column's type; `country=` is an empty text, not NULL. UsageError names
    the problem."""
    found = _FILTER.match(text)
    if found is None:
        raise UsageError(
            f"{text!r} is not a filter", hint="write column=value, or one of != < <= > >=", value=text
        )
    name, operator, value = found[1].strip(), found[2], found[3]
    if name not in schema.names:
        # the index reports the columns that exist
        return name, operator, value
    kind = schema.field(name).type
    try:
        return name, operator, text_decoder(kind)(value)
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise UsageError(
            f"{value!r} is not a value of column {name!r}, which is {format_type(kind)}",
            column=name,
            value=value,
        ) from None
