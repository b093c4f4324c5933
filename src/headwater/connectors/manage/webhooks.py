"""The webhook sources of a workspace: looked up and counted for the HTTP server, and published to other processes.

The counts are those of one server since its start, and informative: accepted deliveries are in the log. The number of
deliveries ever rejected is stored in the log, every few seconds while it grows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.catalog.connectors import SOURCE, SourceDefinition
from headwater.connectors.manage.declarations import ConnectorDeclarations
from headwater.connectors.manage.recent_counts import Recent
from headwater.connectors.manage.status_board import PublishedStatus, StatusBoard
from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import ConflictError, HeadwaterError
from headwater.log.protocol import Log
from headwater.sources.registry import HANDED_OVER
from headwater.sources.webhook_source import WebhookSource

FILE = "hooks.json"
REFUSALS_KEPT = 5
REFUSAL_CHARACTERS_MAX = 200
Outcome = Literal["taken", "repeated", "unsigned", "stale", "malformed", "too-large", "failed"]
"""Outcome of a delivery. 'repeated': it was accepted before, and gets the same answer."""
TAKEN: tuple[Outcome, ...] = ("taken", "repeated")
"""Outcomes of accepted deliveries."""
REFUSED = "refused deliveries"
"""Kind of the catalog entries with the number of deliveries to a webhook that were ever rejected."""
STORE_EVERY_MS = 10_000.0
NOT_SERVED = "not served: `headwater serve` accepts its deliveries"


@dataclass
class _Counted:
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    taken_at: Microseconds | None = None
    refusals: deque[str] = field(default_factory=lambda: deque(maxlen=REFUSALS_KEPT))
    stored: int = 0
    """Number of the rejected deliveries that the log has stored."""

    @property
    def refused(self) -> int:
        """Number of rejected deliveries."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in TAKEN)


def refused_ever(log: Log, name: str) -> int:
    """Return the number of rejected deliveries to a webhook, from all servers so far, as stored in the log."""
    entry = log.entries(REFUSED).get(name)
    return 0 if entry is None else int(entry.document["refused"])


class Hooks:
    """The webhook sources, by name."""

    def __init__(
        self, log: Log, clock: Clock, declared: ConnectorDeclarations[SourceDefinition], board: StatusBoard
    ) -> None:
        self._log = log
        self._clock = clock
        self._declared = declared
        self._board = board
        self._open: dict[str, tuple[int, WebhookSource]] = {}
        self._counted: dict[str, _Counted] = {}
        self._serving = False
        self._stored_ms = clock.steady_ms()
        self._recent = Recent(clock)

    def find(self, name: str) -> WebhookSource | None:
        """Return the webhook of a name, as currently declared; None if there is none. UsageError if this process lacks a
        prerequisite, such as its secret."""
        entry = self._log.entries(SOURCE).get(name)
        if entry is None or entry.document["kind"] not in HANDED_OVER:
            return None
        known = self._open.get(entry.name)
        if known is None or known[0] != entry.sequence:
            made = self._declared.read(entry)
            known = (entry.sequence, WebhookSource(made.name, made.resolved(), clock=self._clock))
            self._open[entry.name] = known
        return known[1]

    def count(self, name: str, outcome: Outcome, refusal: str | None = None) -> None:
        """Count one delivery; `refusal` is the reason why it was rejected."""
        counted = self._counted.setdefault(name, _Counted())
        counted.outcomes[outcome] += 1
        if outcome == "taken":
            counted.taken_at = self._clock.now_us()
        if refusal is not None:
            counted.refusals.append(refusal[:REFUSAL_CHARACTERS_MAX])

    # --- publishing ------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Mark deliveries as accepted here, and publish the status to other processes, if there are webhooks."""
        self._serving = True
        if any(entry.document["kind"] in HANDED_OVER for entry in self._log.entries(SOURCE).values()):
            self._board.start_publishing(self._status)

    def _status(self) -> PublishedStatus:
        if self._clock.steady_ms() - self._stored_ms >= STORE_EVERY_MS:
            self.store()
        return PublishedStatus(self._clock.now_us(), sources=self.statuses())

    def store(self) -> None:
        """Add the rejected deliveries of this process to the count in the log, so that the count survives a restart."""
        self._stored_ms = self._clock.steady_ms()
        for name, counted in list(self._counted.items()):
            while more := counted.refused - counted.stored:
                known = self._log.entries(REFUSED).get(name)
                document = {"refused": refused_ever(self._log, name) + more}
                # another server has stored its own count
                with suppress(ConflictError):
                    self._log.put_entry(
                        REFUSED, name, document, expect=None if known is None else known.sequence
                    )
                    counted.stored += more

    def rest(self) -> None:
        """Mark deliveries as no longer accepted here."""
        if self._serving:
            self._serving = False
            self._board.clear()
            self.store()

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the properties of each served webhook, here or in another process."""
        if self._serving:
            return self.statuses()
        published = self._board.read()
        return {} if published is None else published.sources

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the statuses of the webhooks that are served here, for the status board."""
        found = {}
        for name, entry in self._log.entries(SOURCE).items():
            if entry.document["kind"] not in HANDED_OVER:
                continue
            counted = self._counted.get(name, _Counted())
            try:
                self.find(name)
                why = None
            except HeadwaterError as error:
                why = error.message
            taken, refused = counted.outcomes["taken"], counted.refused
            found[name] = {
                "state": f"not taking deliveries: {why}"
                if why
                else f"taking deliveries at /hooks/{name}" + (f"; {refused} refused" if refused else ""),
                "up": why is None,
                "rows": taken,
                "commits": None,
                "committed_at": counted.taken_at,
                "stopped_tables": {},
                "counts": dict(counted.outcomes),
                "refused_ever": refused_ever(self._log, name) + refused - counted.stored,
                "recent_rejected": self._recent.of(name, refused, begin=0),
                "last_refused": list(counted.refusals),
            }
        return found
