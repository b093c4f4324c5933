"""Progress of views as shown by `run`, `status` and `verify`, from the log and the newest tick alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from headwater.catalog.view_definitions import ViewDefinition
    from headwater.log.protocol import Log
    from headwater.state.manifest import Manifest, ViewState


@dataclass(frozen=True)
class ViewStatus:
    """The status of a view at the newest tick."""

    view: str
    status: str
    behind_rows: int
    """Number of log records that the view has not taken in."""
    last_tick: int | None
    reason: str | None
    ledger: Mapping[str, int]
    """Accounts of the rows that the view has taken in: read, and of those used, diverted, dropped, failed."""
    watermark: datetime | None
    """Watermark that the view has reached; None if the view does not use one."""


def standings(log: Log, manifest: Manifest | None) -> list[ViewStatus]:
    """Return the status of every declared view, by name."""
    from headwater.core.clock import from_us
    from headwater.engine.collections.workload import definitions, state_of
    from headwater.engine.row_errors.late_rows import watermark_of

    views = definitions(log)
    counts = _Counts(log)
    found = []
    for name, view in sorted(views.items()):
        state = state_of(log, view, manifest)
        behind = {topic: counts.after(topic, at) for topic, at in _reads(view, views, manifest)}
        reached = watermark_of(state.record) if state else None
        found.append(
            ViewStatus(
                name,
                state.status if state else "backfilling",
                sum(behind.values()),
                state.last_tick if state else None,
                state.reason if state else None,
                account_of(state),
                None if reached is None else from_us(reached),
            )
        )
    return found


def left_out(log: Log, manifest: Manifest | None) -> dict[str, dict[str, int]]:
    """Return, by view, how many rows it has failed on, diverted and dropped; views that left out none are omitted."""
    from headwater.engine.collections.workload import definitions, state_of

    found = {}
    for name, view in sorted(definitions(log).items()):
        state = state_of(log, view, manifest)
        ledger = state.record.ledger if state is not None else None
        if ledger and any(counts.keys() - {"read"} for counts in ledger.values()):
            found[name] = account_of(state)
    return found


def account_of(state: ViewState | None) -> dict[str, int]:
    """Return the accounts of the rows that a view has taken in, summed over all topics."""
    from headwater.engine.collections.row_ledger import balanced, total

    return total(balanced(state.record.ledger or {} if state is not None else {}))


def stopped_lines(log: Log, manifest: Manifest | None) -> list[str]:
    """Return lines that name the stopped views of a tick, the reasons and the next step; an empty list if none is stopped. A
    view that the next tick will rebuild is omitted."""
    from headwater.engine.collections.shadow_builds import SHADOW
    from headwater.engine.collections.workload import definitions
    from headwater.views.runner import still_stopped

    views = definitions(log)
    stopped, lines = [], []
    for name, reason in still_stopped(manifest).items():
        assert manifest is not None
        view = views.get(name.removesuffix(SHADOW))
        if view is not None and view.incarnation == manifest.views[name].incarnation:
            what = f"view {name}" if name == view.name else f"the new definition of view {view.name}"
            lines.append(f"{what} is stopped: {reason}")
            stopped.append(manifest.views[name])
    if not stopped:
        return []
    # views that stopped because of one below them continue with that one
    first = next((state for state in stopped if not state.record.blocked), stopped[0])
    # the reason names the next step
    if "ACCEPT DROP" in (first.reason or ""):
        return lines
    name = first.name.removesuffix(SHADOW)
    lines.append(
        f"hint: correct the cause, then headwater rebuild {name}; on_error = 'divert' leaves failed rows out, and records them in {name}.errors"
    )
    return lines


def remaining_rows(log: Log, manifest: Manifest | None) -> int:
    """Return the number of records that the engine has yet to read. Views at the same position read them once."""
    from headwater.engine.collections.workload import definitions

    views = definitions(log)
    counts = _Counts(log)
    left = {}
    for view in views.values():
        state = _state(view, manifest)
        if state is None or state.status != "stopped":
            for topic, at in _reads(view, views, manifest):
                left[topic, tuple(sorted(at.items()))] = counts.after(topic, at)
    return sum(left.values())


def backfills(log: Log, manifest: Manifest) -> list[tuple[str, float]]:
    """Return the backfilling views, with the fraction of records already taken in."""
    found = []
    counts = _Counts(log)
    for state in manifest.views.values():
        if state.status == "backfilling" and state.positions and not state.record.derived:
            left = sum(counts.after(topic, at) for topic, at in state.positions.items())
            total = sum(counts.after(topic, {}) for topic in state.positions)
            found.append((state.name, 1.0 - left / total if total else 1.0))
    return found


def waiting_rows(log: Log, manifest: Manifest | None) -> dict[str, int | None]:
    """Return the number of records of each topic that are in no tick yet; None for a topic that no view reads."""
    from headwater.engine.collections.workload import definitions

    counts = _Counts(log)
    read = {name for view in definitions(log).values() for name in view.reads}
    at = manifest.positions if manifest else {}
    return {
        topic: counts.after(topic, at.get(topic, {})) if topic in read else None
        for topic in sorted(log.topics())
    }


def _state(view: ViewDefinition, manifest: Manifest | None) -> ViewState | None:
    """Return the state of a view, if it is of the view's current incarnation."""
    state = manifest.views.get(view.name) if manifest else None
    return state if state is not None and state.incarnation == view.incarnation else None


def _reads(
    view: ViewDefinition, views: Mapping[str, ViewDefinition], manifest: Manifest | None
) -> Iterator[tuple[str, Mapping[int, int]]]:
    """Yield the topics under a view, each with the positions up to which the view has them."""
    from headwater.engine.collections.collections import view_of
    from headwater.plan.relations.metadata_columns import table_with_hidden, versions_of

    state = _state(view, manifest)
    for name in view.reads:
        if view_of(name) in views:
            yield from _reads(views[view_of(name)], views, manifest)
        elif state is not None and name in state.positions:
            yield name, state.positions[name]
        else:
            # a keyed topic is read once for all views, as a table with its own positions
            kept = manifest.views if manifest else {}
            table = kept.get(name) or kept.get(table_with_hidden(name)) or kept.get(versions_of(name))
            yield name, table.positions.get(name, {}) if table is not None else {}


class _Counts:
    """Record counts by topic; each topic's partitions are read once."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[str, dict[int, tuple[int, int, int]]] = {}

    def after(self, topic: str, positions: Mapping[int, int]) -> int:
        """Return the number of records of a topic from these positions on."""
        if topic not in self._known:
            infos = self._log.partitions(topic) if topic in self._log.topics() else {}
            self._known[topic] = {p: (i.first, i.end, i.rows) for p, i in infos.items()}
        total = 0
        for partition, (first, end, rows) in self._known[topic].items():
            total += min(rows, max(0, end - max(first, positions.get(partition, first))))
        return total
