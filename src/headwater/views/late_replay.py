"""Replay of late rows of a view: which rows are replayed, and the view definition under which they count as on time.

A view definition has the offset, by topic and partition, up to which late rows were replayed. The offset is a part of its
meaning, like its query: with another offset it is another definition, which is built from the log as a shadow build.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.errors import UsageError
from headwater.core.positions import Ends
from headwater.engine.collections.workload import replaced
from headwater.log.protocol import Log
from headwater.state.manifest import ViewState

_PLACE = ["_topic", "_partition", "_offset"]


def refuse_untold(view: ViewDefinition) -> None:
    """Raise UsageError if a view does not record late rows: none can be shown or replayed."""
    if view.late is not None:
        return
    if view.options.late == "drop":
        raise UsageError(
            f"view {view.name!r} drops late rows: they are counted, and not kept",
            hint=f"CREATE OR REPLACE MATERIALIZED VIEW {view.name} WITH (late = 'divert') AS ... records them",
            view=view.name,
            reason="drops-late-rows",
        )
    raise UsageError(
        f"view {view.name!r} leaves no late rows out: each has changed the result",
        hint="late = 'divert' or correct_for leaves late rows out",
        view=view.name,
        reason="no-late-rows",
    )


def refuse_other_definition(log: Log, view: ViewDefinition, state: ViewState | None) -> None:
    """Raise UsageError if the active version of a view was not built by its present definition, apart from replayed rows."""
    if state is None or state.incarnation == view.incarnation:
        return
    served = replaced(log, view, state.incarnation)
    if served is None or _without(served.definition) != _without(view):
        raise UsageError(
            f"view {view.name!r} waits for a rebuild, which decides which rows are late",
            hint="`headwater run --once`, or ws.run(), rebuilds it",
            view=view.name,
            reason="rebuild-pending",
        )


def given_back(log: Log, view: ViewDefinition, late: pa.Table, positions: Ends) -> tuple[ViewDefinition, int]:
    """Return the view with its late rows replayed, and the number of replayed topic rows.

    `late` is `<view>.late` at a tick, and `positions` are those of the view there. Rows whose replay was requested before,
    and is in no tick yet, are not counted.
    """
    late, rows = with_topic(log, view, late), 0
    ends = {topic: dict(some) for topic, some in view.replayed.items()}
    places = late.select(_PLACE).group_by(["_topic", "_partition"]).aggregate([])
    for place in places.to_pylist():
        topic, partition = place["_topic"], place["_partition"]
        of_place = pc.and_(pc.equal(late["_topic"], topic), pc.equal(late["_partition"], partition))
        offsets = late.filter(of_place)["_offset"]
        before = ends.get(topic, {}).get(partition, 0)
        rows += pc.count_distinct(offsets.filter(pc.greater_equal(offsets, before))).as_py()
        ends.setdefault(topic, {})[partition] = max(before, positions[topic][partition])
    return (replace(view, replayed=ends) if rows else view), rows


def with_topic(log: Log, view: ViewDefinition, late: pa.Table) -> pa.Table:
    """Return late rows with the topic of each: the column exists if rows of several topics can be late, else there is one
    topic."""
    if "_topic" in late.column_names:
        return late
    known = log.topics()
    (topic,) = (t for t in view.reads if t in known and not known[t].key and known[t].time is not None)
    return late.append_column("_topic", pa.repeat(pa.scalar(topic), late.num_rows))


def _without(view: ViewDefinition) -> dict[str, object]:
    return replace(view, replayed={}).to_document()
