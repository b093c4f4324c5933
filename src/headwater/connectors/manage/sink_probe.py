"""Status of sinks with a short timeout: a target that does not answer must not block a status query."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from headwater.connectors.manage.sink_manager import Sinks
from headwater.connectors.manage.sink_statuses import SinkStatus
from headwater.core.errors import HeadwaterError
from headwater.sinks.base.sink_status import SinkLag, State, Status

PATIENCE_S = 2.0
"""Time within which all targets together have to report their checkpoints."""


def probe_sinks(sinks: Sinks, names: Iterable[str]) -> dict[str, SinkStatus]:
    """Return the statuses of sinks, by name. The statuses of running sinks, here or elsewhere, are known. The targets of the
    others are queried, all at once, over existing connections or over temporary ones. So are those of sinks with rejected
    rows of which some may have been dropped; if these do not answer, no row counts as dropped."""
    known = {name: SinkStatus.from_facts(facts) for name, facts in sinks.facts().items()}
    found: dict[str, SinkStatus] = {}
    answered = threading.Condition()
    wanted = list(names)
    for name in wanted:
        if name in known and not sinks.may_have_dropped(known[name]):
            with answered:
                found[name] = known[name]
            continue
        is_temporary = not sinks.is_open(name)
        asked = sinks.apart() if is_temporary else sinks
        threading.Thread(target=_ask, args=(asked, is_temporary, name, found, answered), daemon=True).start()
    with answered:
        answered.wait_for(lambda: len(found) == len(wanted), PATIENCE_S)
        statuses = dict(found)
    unanswered = f"its target has not answered within {PATIENCE_S:g} s"
    return {
        name: statuses.get(name) or known.get(name) or _unanswered(sinks, name, unanswered) for name in wanted
    }


def _unanswered(sinks: Sinks, name: str, unanswered: str) -> SinkStatus:
    """Return the status of a sink whose target has not answered."""
    stopped = sinks.stopped(name)
    return (
        _not_known(name, "retrying", unanswered) if stopped is None else _not_known(name, "stopped", stopped)
    )


def _ask(
    sinks: Sinks, is_temporary: bool, name: str, found: dict[str, SinkStatus], answered: threading.Condition
) -> None:
    try:
        status = sinks.status(name)
    except HeadwaterError as error:
        status = _not_known(name, "stopped", error.message)
    except Exception as error:  # noqa: BLE001 - a status query reports any error
        status = _not_known(name, "stopped", f"{type(error).__name__}: {error}")
    with answered:
        found[name] = status
        answered.notify_all()
    if is_temporary:
        sinks.stop()


def _not_known(name: str, state: State, reason: str) -> SinkStatus:
    return SinkStatus(Status(name, state, reason), SinkLag(0, None, 0.0))
