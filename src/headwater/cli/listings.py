"""Columns of listings for people: which there are, their order and headers, and which a narrow terminal goes without.

JSON has the rows as they are: the names of the statements and of docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headwater.cli.output import print_listing, shown_bytes, shown_seconds

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Listing:
    """A kind of listing: the header of each column, in order, and the headers that may be left out, the first one first."""

    columns: Mapping[str, str]
    optional: tuple[str, ...]
    empty: str = "none"

    def print(self, rows: Iterable[Row], *, as_json: bool = False) -> None:
        """Print rows: as they are in JSON, otherwise as a table."""
        listed = list(rows)
        shown = listed if as_json else [self._shown(row) for row in listed]
        print_listing(shown, as_json=as_json, empty=self.empty, optional=self.optional)

    def _shown(self, row: Row) -> dict[str, Any]:
        return {header: _value(name, row[name]) for name, header in self.columns.items() if name in row}


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name.endswith("_bytes"):
        return shown_bytes(value)
    if name == "seconds" or name.endswith("_seconds"):
        return shown_seconds(value)
    return value


TOPICS = Listing(
    {
        "topic": "topic",
        "rows": "rows",
        "size_bytes": "size",
        "waiting_rows": "lag (rows)",
        "partitions": "partitions",
        "key": "key",
        "watermark": "watermark",
        "retention": "retention",
        "last_appended_at": "last append",
        "time": "event time",
        "cleanup": "cleanup",
        "columns": "columns",
        "ahead": "ahead",
    },
    (
        "ahead",
        "columns",
        "cleanup",
        "event time",
        "last append",
        "retention",
        "watermark",
        "key",
        "partitions",
    ),
    'no topics yet; create one: headwater sql "CREATE TOPIC ..."',
)
VIEWS = Listing(
    {
        "view": "view",
        "status": "status",
        "reads": "reads",
        "behind_rows": "lag (rows)",
        "columns": "columns",
        "state_bytes": "state",
        "last_tick": "last tick",
        "read": "read",
        "used": "used",
        "diverted": "diverted",
        "dropped": "dropped",
        "failed": "failed",
        "watermark": "watermark",
        "runs": "runs",
        "committed_at": "committed",
    },
    (
        "committed",
        "runs",
        "columns",
        "state",
        "used",
        "watermark",
        "read",
        "diverted",
        "dropped",
        "failed",
        "reads",
    ),
    'no views yet; create one: headwater sql "CREATE MATERIALIZED VIEW ..."',
)
SOURCES = Listing(
    {
        "source": "source",
        "kind": "kind",
        "state": "state",
        "topics": "topics",
        "position": "position",
        "unconfirmed_bytes": "unconfirmed",
        "retained_bytes": "retained",
        "stopped_tables": "stopped tables",
        "counts": "counts",
        "last_refused": "last rejected",
        "options": "options",
    },
    ("unconfirmed", "retained", "stopped tables", "counts", "last rejected"),
    "no sources yet; create one: CREATE SOURCE ... FROM ...",
)
SINKS = Listing(
    {
        "sink": "sink",
        "view": "view",
        "kind": "kind",
        "state": "state",
        "tick": "tick",
        "behind_ticks": "lag (ticks)",
        "behind": "lag (ticks)",
        "ticks": "lag (ticks)",
        "behind_rows": "lag (rows)",
        "rows": "lag (rows)",
        "behind_seconds": "lag (time)",
        "seconds": "lag (time)",
        "withheld": "rejected",
        "dropped": "dropped",
        "circuit": "circuit",
        "reason": "reason",
        "options": "options",
    },
    ("kind", "lag (rows)", "dropped", "rejected", "circuit", "reason", "view"),
    "no sinks yet; create one: CREATE SINK ... FROM view INTO ...",
)
ALERTS = Listing(
    {
        "alert": "alert",
        "on": "on",
        "condition": "condition",
        "held_for": "held for",
        "state": "state",
        "since": "since",
        "episodes": "episodes",
        "notify": "notify",
        "untold": "not sent",
        "reason": "reason",
        "options": "options",
    },
    ("held for", "not sent", "reason", "episodes", "notify"),
    "no alerts yet; create one: CREATE ALERT ... ON view WHEN ... NOTIFY ...",
)
QUEUES = Listing(
    {
        "queue": "queue",
        "topic": "topic",
        "waiting": "waiting",
        "leased": "leased",
        "delayed": "delayed",
        "dead": "dead",
        "oldest_seconds": "oldest",
    },
    ("delayed", "topic"),
    "no queues yet; create one: headwater queue make QUEUE TOPIC",
)
CURSORS = Listing(
    {
        "cursor": "cursor",
        "topic": "topic",
        "lag_rows": "lag (rows)",
        "lag_seconds": "lag (time)",
        "members": "members",
        "hold": "hold",
        "lost": "lost",
        "committed_at": "committed",
    },
    ("lost", "members"),
    "no cursors yet",
)
STANDING = Listing(
    {
        "standing_query": "name",
        "documents": "documents",
        "queries": "queries",
        "stored": "stored",
        "definition": "definition",
    },
    ("definition",),
    "no standing queries yet; create one: CREATE STANDING QUERY ... ON topic (...)",
)

OF_STATEMENTS: Mapping[str, Listing] = {
    "ShowTopics": TOPICS,
    "ShowViews": VIEWS,
    "ShowSources": SOURCES,
    "ShowSinks": SINKS,
    "ShowAlerts": ALERTS,
    "ShowCursors": CURSORS,
    "ShowStanding": STANDING,
}
"""Listings by the name of their statement in `headwater.sql.statements`."""
