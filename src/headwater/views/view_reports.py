"""Reports about views: SHOW VIEWS, EXPLAIN, row counts, keys, and the comparison with their SELECT."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.core.clock import from_us
from headwater.engine.collections.row_ledger import Ledger, balanced, total
from headwater.engine.collections.workload import definitions, state_of
from headwater.engine.row_errors.late_rows import watermark_of
from headwater.serving.name_hints import names_hinted
from headwater.sql import statements as s
from headwater.state.base_ticks import Bases
from headwater.state.run_refs import RunRef
from headwater.views.dead_letter_actions import with_dropped
from headwater.views.explain_view import explained, resting_on, sketched, unplanned
from headwater.views.runner import EngineHost
from headwater.views.state_growth import extents
from headwater.views.view_keys import keys_of, only_grows
from headwater.views.view_names import ViewNames
from headwater.views.view_reads import ViewReads

if TYPE_CHECKING:
    from headwater.verify.verification import ViewCheck


_VIEWS = pa.schema(
    [
        ("view", pa.string()),
        ("status", pa.string()),
        ("reads", pa.string()),
        ("columns", pa.int32()),
        ("runs", pa.int32()),
        ("state_bytes", pa.int64()),
        ("last_tick", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("reason", pa.string()),
        ("failed", pa.int64()),
        ("diverted", pa.int64()),
        ("dropped", pa.int64()),
        ("watermark", pa.timestamp("us", tz="UTC")),
    ]
)


class ViewReports:
    """Reports the properties of views and the accounts of their rows."""

    def __init__(self, room: EngineHost, names: ViewNames, reads: ViewReads) -> None:
        self._log = room.log
        self._store = room.store
        self._tools = room.tools
        self._listener = room.listener
        self._names = names
        self._reads = reads

    def show(self) -> pa.Table:
        """SHOW VIEWS: return a row for each view."""
        manifest = self._store.latest()
        rows = []
        for name, view in sorted(definitions(self._log).items()):
            state = state_of(self._log, view, manifest)
            refs: Sequence[RunRef] = ()
            size = 0
            if manifest is not None and state is not None:
                refs = manifest.arrangements.get(state.contents, ())
                size = sum(ref.size for each in manifest.kept_for(state).values() for ref in each)
            account = total(self.ledger(name))
            reached = watermark_of(state.record) if state is not None else None
            rows.append(
                {
                    "view": name,
                    "status": state.status if state is not None else "backfilling",
                    "reads": ", ".join(view.reads),
                    "columns": len(view.columns),
                    "runs": len(refs),
                    "state_bytes": size,
                    "last_tick": state.last_tick if state is not None else None,
                    "committed_at": from_us(manifest.committed_at) if manifest else None,
                    "reason": state.reason if state is not None else None,
                    **{what: account[what] for what in ("failed", "diverted", "dropped")},
                    "watermark": None if reached is None else from_us(reached),
                }
            )
        return pa.Table.from_pylist(rows, schema=_VIEWS)

    def explain(self, name: str) -> pa.Table:
        """EXPLAIN of a view: return its statement, its graph and the state of its operators."""
        view = self._names.describe(name)
        workload = self._tools().catalog.workload({})
        unit = next((unit for unit in workload.units if unit.name == view.name), None)
        manifest = self._store.latest()
        if unit is None:
            return unplanned(view, workload.broken[view.name].reason, manifest)
        base = resting_on(self._log, unit, Bases(self._store.storage), manifest)
        return explained(view, unit, manifest, extents(workload.units, self._log.topics()), base)

    def explain_query(self, query: s.QueryText) -> pa.Table:
        """EXPLAIN query: return how the query would be maintained as a view."""
        tools = self._tools()
        known = extents(tools.catalog.units(), self._log.topics())
        with names_hinted(self._log):
            plan = tools.catalog.plan(query)
        return sketched(plan, tools.evaluator, known)

    def verify(self) -> list[ViewCheck]:
        """Recompute every live view in batch from the log at the newest tick's cut, and compare."""
        from headwater.verify.verification import verify_views

        return verify_views(
            self._log,
            self._store,
            self._store.latest(),
            self._tools,
            self._listener(),
        )

    def keys(self, name: str) -> list[tuple[str, ...]]:
        """Return the unique keys of a view by its definition, as column names; () means that the view has at most one row."""
        return keys_of(self._log, self._tools().catalog, self._names.describe(name))

    def only_grows(self, name: str) -> bool:
        """Whether a view, by its definition, never retracts a row."""
        return only_grows(self._tools().catalog, self._names.describe(name))

    def ledger(self, name: str, *, by_hand: bool = True) -> dict[str, dict[str, int]]:
        """Return the row accounts of a view up to the newest tick, by topic. A failed row whose dead letter was dropped
        since counts as dropped; with `by_hand` false, still as failed."""
        view = self._names.describe(name)
        state = state_of(self._log, view, self._store.latest())
        counted: Ledger = state.record.ledger or {} if state is not None else {}
        accounts = balanced(counted, [topic for topic in view.reads if topic in self._log.topics()])
        if by_hand and any(account["failed"] for account in accounts.values()):
            return with_dropped(
                self._log, view.name, accounts, partial(self._reads.contents, f"{view.name}.errors")
            )
        return accounts
