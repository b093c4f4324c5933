"""EXPLAIN of a source or a sink: definition, guarantee and position. An unavailable target is reported as such."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headwater.catalog.connector_kinds import SOURCE_KINDS
from headwater.catalog.connectors import SinkDefinition, SourceDefinition
from headwater.connectors.manage.sink_manager import Sinks
from headwater.connectors.manage.sink_statuses import SinkStatus
from headwater.connectors.manage.source_manager import SourceManager
from headwater.core.errors import HeadwaterError
from headwater.core.extras import require
from headwater.core.settings import format_bytes
from headwater.log.protocol import Log
from headwater.sinks.registry import guarantee_of, wanted_of

_CIRCUITS = {
    "closed": "closed: requests are sent",
    "open": "open: after repeated failures no requests are sent for a while",
    "half-open": "half-open: the next request decides whether the circuit closes",
}
_MODES = {
    "upsert": "rows are replaced and deleted by key",
    "append": "rows are only added",
    "changelog": "every change is a record, with _weight and _tick",
}


def explained_source(sources: SourceManager, log: Log, name: str) -> pa.Table:
    """Return all properties of a source."""
    made = sources.definitions()[name]
    status, known = sources.status(name), sources.facts().get(name, {})
    topics = {t.name: t for t in log.topics().values() if t.captured_by == name}
    facts = {
        "source": name,
        "kind": made.kind,
        "statement": made.to_sql(),
        "guarantee": SOURCE_KINDS[made.kind].guarantee,
        **_read_from(made),
        "topics": ", ".join(sorted(topics)) or "none yet",
    }
    for topic in topics.values():
        if topic.schema_changes == "refuse":
            facts[f"contract of {topic.name}"] = "a change of the table's columns stops its capture"
        for one in topic.dropped:
            facts[f"dropped column {topic.name}.{one.column}"] = one.change
    facts |= {"state": status.state, "position": status.position or "nothing was read yet"}
    for table, reason in sources.stopped_tables(name).items():
        facts[f"stopped table {table}"] = reason
    for what, of in (("retained_bytes", "retained WAL"), ("behind_bytes", "unconfirmed WAL")):
        if known.get(what) is not None:
            facts[of] = format_bytes(known[what])
    if known.get("counts"):
        facts["counts"] = ", ".join(
            f"{count:,} {what.replace('_', ' ')}" for what, count in known["counts"].items()
        )
    if known.get("last_refused"):
        facts["last refused"] = "\n".join(known["last_refused"])
    return _table(facts)


def explained_sink(sinks: Sinks, name: str, sink_status: SinkStatus) -> pa.Table:
    """Return all properties of a sink. `sink_status` is its status."""
    made = sinks.definitions()[name]
    lag, status = sink_status.lag, sink_status.status
    facts = {
        "sink": name,
        "kind": made.kind,
        "statement": made.to_sql(),
        "follows": f"view {made.view}",
        "guarantee": guarantee_of(made.kind),
        **_takes(made),
        "state": status.state + (f": {status.reason}" if status.reason else ""),
        "checkpoint": "unknown" if status.tick is None else f"tick {status.tick}",
        "behind": "unknown"
        if lag.rows is None
        else f"{lag.rows:,} rows, {lag.ticks:,} ticks, {lag.seconds:.1f} s",
    }
    if status.circuit is not None:
        facts["circuit"] = _CIRCUITS[status.circuit]
    topics = sinks.topics_of(name)
    if topics is not None and topics.in_force != topics.declared:
        facts["writes to"] = f"topic {topics.in_force}"
    if status.withheld:
        facts["rejected"] = f"{status.withheld:,} rows that the target rejects"
    return _table(facts)


def _takes(made: SinkDefinition) -> dict[str, str]:
    """Return how a sink takes changes, and the key of its rows."""
    try:
        wanted = wanted_of(made)
    except HeadwaterError as error:  # an environment variable of an option is not set here
        return {"mode": f"unknown here: {error.message}"}
    facts = {"mode": f"{wanted.mode}: {_MODES[wanted.mode]}"}
    if made.key:
        proof = f"unique in view {made.view}, as proven when the sink was created"
        facts["key"] = f"{', '.join(made.key)}: {proof}"
    refused = "are left out and reported on a topic" if wanted.on_error == "divert" else "stop the sink"
    return {**facts, "errors": f"rows that the target rejects {refused}"}


_ON_GAP = {
    "stop": "a table stops if the server no longer has all of its changes; if that holds for all tables, the source stops",
    "snapshot": "a table is snapshotted again if the server no longer has all of its changes",
}


def _read_from(made: SourceDefinition) -> dict[str, str]:
    """Return what a source reads, according to its options."""
    if made.kind != "postgres":
        return {}
    try:
        require("postgres", "a source from Postgres")
        from headwater.sources.postgres.server.options import read_options
        from headwater.sources.postgres.server.publications import publication_names

        options = read_options(made.name, made.resolved())
    except HeadwaterError as error:
        return {"tables": f"unknown here: {error.message}"}
    budget = options.max_wal_bytes
    facts: dict[str, Any] = {
        "tables": ", ".join(f"{table} AS {table.topic}" for table in options.tables) or None,
        "outbox": options.outbox,
        "snapshot": options.snapshot,
        "slot": options.slot + (", adopted" if options.slot_given else ""),
        "publication": ", ".join(publication_names(options))
        + (", adopted" if options.publication_given else ""),
        "on gap": f"{options.on_gap}: {_ON_GAP[options.on_gap]}",
        "WAL budget": None if budget is None else f"{format_bytes(budget)}, beyond it: {options.over_wal}",
    }
    return {what: str(said) for what, said in facts.items() if said is not None}


def _table(facts: dict[str, str]) -> pa.Table:
    return pa.table({"property": list(facts), "value": list(facts.values())})
