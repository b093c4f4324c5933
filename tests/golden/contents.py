"""What a workspace holds, as plain JSON: how golden workspaces say what must be found in them."""

from __future__ import annotations

import dataclasses
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import headwater as hw

VIEWS = ("spent", "by_country", "best", "listed", "urls", "per_minute", "steps", "noted", "noted.errors")
"""What views of the golden workspace give: their rows, and what one of them gives beside them."""
PRIVATE_VIEWS = ("by_text", "mails", "urls")
"""The views of the golden workspace with private columns."""


def contents(ws: hw.Workspace) -> dict[str, Any]:
    """Every topic with its definition, bounds and records, and every cursor and group."""
    return {
        "topics": {topic.name: _topic(topic) for topic in ws.topics()},
        "cursors": [_plain(dataclasses.asdict(cursor)) for cursor in ws.cursors()],
        "groups": [
            _plain(dataclasses.asdict(group))
            for cursor in ws.cursors()
            if (group := ws.log.group(cursor.topic, cursor.name)) is not None
        ],
    }


def view_rows(ws: hw.Workspace, name: str, as_of: int | None = None) -> list[str]:
    """The rows of a view at a tick, as texts in order; without what is worded by Spark."""
    rows = ws.view(name).read(as_of=as_of).to_pylist()
    return sorted(repr({column: _plain(row[column]) for column in row if column != "_error"}) for row in rows)


def _topic(topic: Any) -> dict[str, Any]:
    definition = topic.definition
    hidden = ["_partition", "_offset", "_appended_at", "_watermark", "_sequence"]
    hidden += ["_op"] if definition.keyed else []
    hidden += ["_version"] if definition.versioned_by else []
    hidden += ["_forgotten"] if definition.private else []
    columns = [*definition.schema.names, *hidden]
    rows = [
        [_plain(row[name]) for name in columns]
        for batch in topic.read(columns=columns)
        for row in batch.to_pylist()
    ]
    rows.sort(key=lambda row: (row[columns.index("_partition")], row[columns.index("_offset")]))
    bounds = {
        str(number): {
            "first": i.first,
            "end": i.end,
            "rows": i.rows,
            "watermark": i.watermark,
            "ahead": i.ahead,
        }
        for number, i in topic.partitions().items()
    }
    return {
        "definition": _plain(definition.to_json()),
        "partitions": bounds,
        "columns": columns,
        "rows": rows,
    }


def _plain(value: Any) -> Any:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case float() if math.isnan(value) or math.isinf(value):
            return str(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
