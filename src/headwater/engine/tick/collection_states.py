"""The states of views, tables and derived relations in a manifest, computed from their progress after a tick."""

from __future__ import annotations

import dataclasses

from headwater.engine.collections.arrangements import Added, arrangement_id
from headwater.engine.collections.collections import Collection, DerivedRelation, ViewCollection
from headwater.engine.collections.workload import Broken
from headwater.engine.tick.collection_progress import CollectionProgress
from headwater.state.manifest import CollectionRecord, ViewState, encode_schema
from headwater.state.run_refs import RunRef


def unit_state(
    unit: Collection, standing: CollectionProgress, then: ViewState | None, tick: int, change: Added | None
) -> ViewState:
    """Return the state of a view or a table after a tick; `then` is its state before, `change` the run with the tick's
    change."""
    live = standing.status == "live"
    return ViewState(
        name=unit.name,
        incarnation=unit.incarnation,
        status=standing.status,  # type: ignore[arg-type]
        contents=arrangement_id(unit, unit.contents),
        schema=unit.contents.layout if unit.contents.schema is unit.schema else encode_schema(unit.schema),
        reason=standing.reason,
        last_tick=tick if live else (then.last_tick if then else None),
        positions=standing.positions,
        change=_ref(change) if live else None,
        built=standing.built,
        record=CollectionRecord(
            identity=unit.identity,
            fingerprint=unit.fingerprint,
            sequence=standing.sequence,
            begun=standing.begun,
            begins=standing.begins,
            table=unit.is_table,
            key=unit.key if standing.key is None else standing.key,
            base=standing.base.tick if standing.base is not None else None,
            blocked=standing.is_blocked,
            old=standing.old,
            ledger=standing.ledger if isinstance(unit, ViewCollection) else None,
            watermarks=standing.watermarks,
            keeps=unit.keeps,
        ),
    )


def derived_state(
    derived: DerivedRelation, unit: Collection, state: ViewState, then: ViewState | None, change: Added | None
) -> ViewState:
    """Return the state of a derived relation: it has the positions and status of its view, whose state is `state`."""
    live = state.status == "live"
    return dataclasses.replace(
        state,
        name=derived.name,
        contents=arrangement_id(unit, derived.contents),
        schema=encode_schema(derived.schema),
        last_tick=state.last_tick if live else (then.last_tick if then else None),
        change=_ref(change) if live else None,
        record=dataclasses.replace(state.record, ledger=None, key=derived.contents.key, derived=True),
    )


def broken_state(name: str, broken: Broken, then: ViewState | None, tick: int) -> ViewState:
    """Return the state of a view that cannot be planned: unchanged positions, so it can be read at the last tick it was
    part of."""
    if then is not None and then.incarnation == broken.definition.incarnation:
        record = dataclasses.replace(then.record, unplanned=True)
        return dataclasses.replace(then, status="stopped", reason=broken.reason, change=None, record=record)
    return ViewState(
        name=name,
        incarnation=broken.definition.incarnation,
        status="backfilling" if broken.waits else "stopped",
        contents="",
        schema=encode_schema(broken.definition.columns),
        reason=broken.reason,
        built=tick,
        record=CollectionRecord(unplanned=True),
    )


def _ref(added_run: Added | None) -> RunRef | None:
    return None if added_run is None else added_run.ref
