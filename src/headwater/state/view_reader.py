"""Contents and changes of views, read from committed ticks alone, without an engine or JVM; without SQL."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.errors import CorruptionError, TickNotKeptError, ViewUnavailableError
from headwater.core.positions import Token
from headwater.operators.zset.delta import Delta, concat_rows, consolidate, take_rows
from headwater.operators.zset.runs import Key, contents, first_contents, key_hashes, probe
from headwater.state.manifest import Manifest, ViewState
from headwater.state.missing_ticks import other_history, tick_not_kept
from headwater.state.run_refs import RunRef
from headwater.state.store import StateStore


def view_contents(store: StateStore, manifest: Manifest, view: str, first: int | None = None) -> pa.Table:
    """Return the rows of a view at a tick, repeated by weight, in unspecified order; or about the `first` so many, at least.

    Raises ViewUnavailableError if the view is not part of the tick, TickNotKeptError if the tick was collected.
    """
    state = view_state(manifest, view)
    runs, schema = store.runs(manifest, state.contents), state.arrow_schema
    return expanded(first_contents(runs, partial(contents, schema=schema), first), schema, view)


def view_lookup(store: StateStore, manifest: Manifest, view: str, key: Key, keys: pa.RecordBatch) -> pa.Table:
    """Return the rows of a view whose columns `key` (by index) equal one of the rows of `keys`.

    `key` must be the columns by which the view's contents are arranged, in that order, and `keys` must not repeat a
    row. The cost is proportional to the rows found.
    """
    state = view_state(manifest, view)
    hashes = key_hashes(keys, range(keys.num_columns))
    refs = [ref for ref in manifest.arrangements[state.contents] if _may_have(ref, hashes)]
    schema = state.arrow_schema
    found = probe(store.open_runs(manifest, refs), key, keys, hashes, schema=schema)
    rows = concat_rows([found.rows], schema)
    return expanded(consolidate(Delta(rows, found.weights)), schema, view)


def view_changes(store: StateStore, view: str, after: int | Token) -> pa.Table:
    """Return the changes of a view after a tick, up to the newest: its columns, `_weight` and `_tick`, oldest first.

    Raises OtherHistoryError if the token's tick now has another id. Raises TickNotKeptError, which names the first
    available tick, if one of the ticks is not kept, or if the view was rebuilt after the given tick: then these changes
    do not apply to a subscriber's copy, and the subscriber restarts from the contents.
    """
    token = after if isinstance(after, Token) else Token(after)
    latest, since = store.latest(), token.number
    if latest is None:
        raise tick_not_kept(since, [])
    state = view_state(latest, view)
    schema = state.arrow_schema
    kept = kept_after(store, since, latest.tick)
    check_follows(store, token, latest)
    batches = []
    for tick in (since, *kept):
        try:
            manifest = store.manifest(tick)
        except TickNotKeptError:
            if tick != since:
                raise
            if 0 < since < state.built:  # the history at that tick can no longer be determined
                raise _rebuilt(store, state, since, latest) from None
            continue
        then = manifest.views.get(view)
        if then is None:
            continue
        if then.history != state.history and (then.status == "live" or then.last_tick is not None):
            raise _rebuilt(store, state, since, latest)
        if tick > since and then.change is not None:
            batches.append(as_changes(change_run(store, manifest, then.change), schema, tick))
    return pa.Table.from_batches(batches, schema=changes_schema(schema))


def view_state(manifest: Manifest, view: str) -> ViewState:
    """Return the state of a view that is part of a tick; raises ViewUnavailableError if it is not."""
    state = manifest.views.get(view)
    if state is None:
        raise ViewUnavailableError(
            f"there is no view {view!r} at tick {manifest.tick}",
            hint="`headwater views` lists the views",
            view=view,
            status="missing",
            tick=manifest.tick,
            last_tick=None,
        )
    if state.status == "live":
        return state
    was = (
        "it has not been part of any tick yet"
        if state.last_tick is None
        else f"its last tick is {state.last_tick}"
    )
    hint = "`headwater status` shows its progress"
    if state.status == "stopped":
        hint = "correct it with CREATE OR REPLACE; on_error = 'divert' leaves out rows that fail"
    if state.last_tick is not None:
        hint += f"; as_of={state.last_tick} reads its last contents"
    raise ViewUnavailableError(
        f"view {view!r} is {state.status} and not part of tick {manifest.tick}: {was}",
        detail=state.reason,
        hint=hint,
        view=view,
        status=state.status,
        tick=manifest.tick,
        last_tick=state.last_tick,
    )


def _may_have(ref: RunRef, hashes: npt.NDArray[np.uint64]) -> bool:
    if ref.rows == 0:
        return False
    return bool(((hashes >= np.uint64(ref.low)) & (hashes <= np.uint64(ref.high - 1))).any())


def expanded(found: Delta, schema: pa.Schema, view: str) -> pa.Table:
    """Repeat every row by its weight."""
    if (found.weights < 0).any():
        raise CorruptionError(
            f"view {view!r} has a row with a negative count",
            hint=f"`headwater verify` shows where it differs from its SELECT; `headwater rebuild {view}` corrects it",
            view=view,
            reason="negative-count",
        )
    rows = found.rows
    if (found.weights != 1).any():
        rows = take_rows(rows, np.repeat(np.arange(len(found.weights)), found.weights))
    return pa.Table.from_batches([rows], schema=schema)


def changes_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a view's changes."""
    return schema.append(pa.field("_weight", pa.int64())).append(pa.field("_tick", pa.int64()))


def as_changes(change: Delta, schema: pa.Schema, tick: int) -> pa.RecordBatch:
    """Return a tick's change in its public form: its rows with `_weight` and `_tick`."""
    columns = [*change.rows.columns, pa.array(change.weights), pa.repeat(pa.scalar(tick), len(change))]
    return pa.RecordBatch.from_arrays(columns, schema=changes_schema(schema))


def change_run(store: StateStore, manifest: Manifest, ref: RunRef) -> Delta:
    """Return the change of a view in a tick, from the run that the manifest names."""
    (run,) = store.open_runs(manifest, [ref])
    return Delta(run.rows, run.weights, distinct=True)


def kept_after(store: StateStore, since: int, latest: int) -> range:
    """Return the range of ticks after `since`; raises TickNotKeptError unless all of them are kept."""
    ticks = store.ticks()
    kept = set(ticks)
    first = latest + 1
    while first - 1 in kept:
        first -= 1
    if since + 1 < first:
        raise tick_not_kept(since + 1, [tick for tick in ticks if tick >= first])
    return range(since + 1, latest + 1)


def check_follows(store: StateStore, token: Token, latest: Manifest, what: str = "") -> None:
    """Raise OtherHistoryError unless the newest tick is the token's, or continues from it; ticks in between must be kept."""
    if not token.id:
        return
    found: str | None = None
    if token.number < latest.tick:
        found = store.manifest(token.number + 1).previous
    elif token.number == latest.tick:
        found = latest.id
    if found != token.id:
        raise other_history(token, found, store.ticks(), what)


def _rebuilt(store: StateStore, state: ViewState, since: int, latest: Manifest) -> TickNotKeptError:
    """Return the error for a view rebuilt after `since`, with the first tick from which its changes can be read."""
    first = latest.tick
    while first - 1 > since:
        before = store.manifest(first - 1).views.get(state.name)
        if before is None or before.history != state.history or before.status != "live":
            break
        first -= 1
    return TickNotKeptError(
        f"view {state.name!r} was rebuilt at tick {first}: changes from before the rebuild cannot be followed",
        hint=f"read the contents at tick {first} or later and follow the changes from there",
        tick=since,
        first_available=first,
        last_available=latest.tick,
        rebuilt_at=first,
        view=state.name,
        reason="rebuilt",
    )
