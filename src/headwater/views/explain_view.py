"""EXPLAIN: a view's operator graph as text and as a Mermaid chart, with its keys, arrangements and their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.catalog.view_definitions import ViewDefinition, ViewOptions
from headwater.core.clock import format_span, from_us
from headwater.core.errors import CorruptionError
from headwater.core.settings import format_bytes
from headwater.core.types import format_type
from headwater.engine.collections.collections import ERRORS_NAME, Collection, ViewCollection
from headwater.engine.collections.retention_holds import base_of, removed
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.facets.kept_state import Extent
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.dataflow.operators.close import waited_for
from headwater.engine.dataflow.operators.operator_kind import column_names
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.engine.row_errors.late_rows import LATE_NAME, watermark_of
from headwater.log.protocol import Log
from headwater.operators import graph as g
from headwater.plan.planner import Plan
from headwater.state.base_ticks import Bases
from headwater.state.manifest import Manifest, ViewState
from headwater.views.state_growth import bound_text, expiring


def explained(
    view: ViewDefinition,
    unit: Collection,
    manifest: Manifest | None,
    extents: Mapping[str, Extent],
    base: Manifest | None = None,
) -> pa.Table:
    """Return all properties of a view, one in each row; `base` is the base tick from which it would be rebuilt, if any."""
    assert isinstance(unit, ViewCollection)
    state = manifest.views.get(view.name) if manifest else None
    facts = _declared(view, state)
    facts["arranged by"] = ", ".join(unit.schema.field(k).name for k in unit.key) or "one group"
    facts["state"] = bound_text(unit.plan.root, extents, expiring(unit.plan))
    facts |= _final_facts(unit.plan.root, state)
    if unit.plan.hidden:
        facts["metadata columns"] = "; ".join(
            f"{', '.join(names)} of {topic}" for topic, names in unit.plan.hidden.items()
        )
    if (bounds := _bounds(unit.plan)) is not None:
        facts["approximate"] = bounds
    facts |= _warnings(unit.plan)
    if state is not None and state.reason:
        facts["reason"] = state.reason
    if state is not None and (begins := begins_late(_firsts(state))) is not None:
        facts["begins"] = begins
    if base is not None:
        facts["base"] = (
            f"tick {base.tick}: earlier records were removed, and their effect is kept in the base"
        )
    facts["graph"] = "\n".join(describe(unit.pipeline, unit.identity, manifest))
    facts["picture"] = "\n".join(picture(unit.pipeline, unit.name))
    return pa.table({"property": list(facts), "value": list(facts.values())})


def _bounds(plan: Plan) -> str | None:
    """Return the error bounds of sketches; None if the plan has no sketches."""
    if plan.exactly:
        return "answered exactly: a sketch cannot retract rows, and values computed from its answer have no bound; count(DISTINCT ...) and percentile(...) are the same"
    names = plan.schema.names
    return "; ".join(f"{names[i]}: {f.sketch.bound}" for i, f in plan.approximate.items()) or None


def _warnings(plan: Plan) -> dict[str, str]:
    """Return the warnings of a plan."""
    return {"warning": "; ".join(plan.warnings)} if plan.warnings else {}


def unplanned(view: ViewDefinition, reason: str, manifest: Manifest | None) -> pa.Table:
    """Return the properties of a view that cannot be planned at present."""
    state = manifest.views.get(view.name) if manifest else None
    facts = {**_declared(view, state), "reason": reason}
    return pa.table({"property": list(facts), "value": list(facts.values())})


def _declared(view: ViewDefinition, state: ViewState | None) -> dict[str, str]:
    stops = "stops the view"
    if view.options.on_error == "divert":
        stops = f"is left out, and recorded in {view.name}.{ERRORS_NAME}"
    return {
        "view": view.name,
        "statement": view.to_sql(),
        "columns": ", ".join(f"{f.name} {format_type(f.type)}" for f in view.columns),
        "status": state.status if state else "backfilling",
        "errors": f"a row that fails {stops}",
        **_late_facts(view),
    }


def _late_facts(view: ViewDefinition) -> dict[str, str]:
    """Return how late rows are handled, if the view declares it."""
    recorded = f"left out, and recorded in {view.name}.{LATE_NAME}"
    match view.options:
        case ViewOptions(late="divert"):
            said = f"a row that is late for its window is {recorded}"
        case ViewOptions(late="drop"):
            said = "a row that is late for its window is left out, and counted"
        case ViewOptions(correct_for_us=int(span)):
            said = f"a late row changes the result until the watermark is {format_span(span)} past its window; then it is {recorded}"
        case _ if view.emit_on_close:
            said = "a late row changes the result, and final rows too, so all windows are kept"
        case _:
            return {}
    back = [
        f"partition {p} of {t} before offset {end}" for t, e in view.replayed.items() for p, end in e.items()
    ]
    return {"late rows": said, **({"replayed": f"late rows of {', '.join(back)}"} if back else {})}


def _final_facts(root: g.Node, state: ViewState | None) -> dict[str, str]:
    """Return when rows are final, for a view that shows only final rows, and the watermark."""
    facts = {}
    if isinstance(root, g.Close):
        facts["final"] = f"a row is shown when the watermark of {waited_for(root)} has {_reached(root.input)}"
    reached = watermark_of(state.record) if state is not None else None
    return facts | ({"watermark": from_us(reached).isoformat()} if reached is not None else {})


def _reached(node: g.Node) -> str:
    """Return the position that a watermark must have reached for a row of a node to be final."""
    while isinstance(node, g.Map):
        node = node.input
    return kind_of(node).final_when(node)


def resting_on(log: Log, unit: Collection, bases: Bases, manifest: Manifest | None) -> Manifest | None:
    """Return the base from which a view would be rebuilt, if records that it was built from were removed."""
    state = manifest.views.get(unit.name) if manifest else None
    if state is None or not removed(log, state.record.begins):
        return None
    try:
        base = bases.newest()
    except CorruptionError:
        # `headwater verify` reports it
        return None
    return base if base_of(log, unit, base) is not None else None


def _firsts(state: ViewState) -> dict[str, Sequence[int]]:
    """Return the first offsets that a view read, without the offsets up to which topics were compacted then."""
    begins: Mapping[str, Sequence[int]] = state.record.begins
    parts = {topic: len(ends) for topic, ends in state.positions.items()}
    return {topic: then[: 1 + parts.get(topic, len(then))] for topic, then in begins.items()}


def begins_late(begins: Mapping[str, Sequence[int]]) -> str | None:
    """Return where a view began to read the partitions of its topics; None if it read them from their first records."""
    late = {topic: offsets for topic, (_, *offsets) in begins.items() if any(offsets)}
    if not late:
        return None
    places = [
        f"partition {p} of {t} at offset {o}" for t, offsets in late.items() for p, o in enumerate(offsets)
    ]
    return f"{', '.join(places)}: earlier records had been removed"


def sketched(plan: Plan, evaluator: Evaluator, extents: Mapping[str, Extent]) -> pa.Table:
    """Return how a query would be maintained as a view."""
    pipeline = Dataflow(plan.root, evaluator)
    facts = {
        "columns": ", ".join(f"{f.name} {format_type(f.type)}" for f in plan.schema),
        "state": bound_text(plan.root, extents, expiring(plan)),
        **_warnings(plan),
        "graph": "\n".join(describe(pipeline, "", None)),
        "picture": "\n".join(picture(pipeline, "view")),
    }
    return pa.table({"property": list(facts), "value": list(facts.values())})


def describe(pipeline: Dataflow, identity: str, manifest: Manifest | None) -> list[str]:
    """Return the graph as lines of text, the view first, each operator with its layer and its arrangements."""
    operators = {id(node): operator for node, operator in pipeline.nodes}
    lines: list[str] = []

    def visit(node: g.Node, depth: int) -> None:
        lines.append("  " * depth + f"{title(node)}  [layer {layer(node)}]")
        for slot in operators[id(node)].slots:
            lines.append("  " * (depth + 1) + "keeps " + _arrangement_text(identity, slot, manifest))
        for child in node.inputs:
            visit(child, depth + 1)

    visit(pipeline.root, 0)
    return lines


def picture(pipeline: Dataflow, name: str) -> list[str]:
    """Return the graph as a Mermaid flowchart."""
    nodes = pipeline.nodes
    numbers = {id(node): i for i, (node, _) in enumerate(nodes)}
    lines = ["flowchart LR"]
    for node, operator in nodes:
        label = title(node).replace('"', "'")[:80]
        shape = ("[(", ")]") if isinstance(node, g.SourceNode) else ("[", "]")
        extra = f"<br/>{len(operator.slots)} arrangements" if operator.slots else ""
        lines.append(f'  n{numbers[id(node)]}{shape[0]}"{label}{extra}"{shape[1]}')
    for node, _ in nodes:
        lines += [f"  n{numbers[id(child)]} --> n{numbers[id(node)]}" for child in node.inputs]
    lines.append(f'  n{len(nodes) - 1} --> view(["{name}"])')
    return lines


def layer(node: g.Node) -> int:
    """Return the number of key exchanges on the way of a change up to the output of a node."""
    below = max((layer(child) for child in node.inputs), default=0)
    return below + (0 if kind_of(node).is_linear else 1)


def title(node: g.Node) -> str:
    """Return a description of an operator in one line."""
    return kind_of(node).title(node)


def _arrangement_text(identity: str, slot: ArrangementSpec, manifest: Manifest | None) -> str:
    refs = manifest.arrangements.get(f"{identity}/{slot.name}", ()) if manifest else ()
    rows, size = sum(r.rows for r in refs), sum(r.size for r in refs)
    key = column_names(slot.schema, slot.key)
    return f"{slot.name} by ({key}): {rows} rows in {len(refs)} runs, {format_bytes(size)} bytes"
