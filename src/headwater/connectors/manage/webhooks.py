"""The hooks of a workspace: sources that are posted to. Found for who serves HTTP, counted there, and told of to other processes.

The counts are news of one server since it was started, not truth: what was taken is in the log. How many deliveries were ever
refused is stored in the log, every few seconds while there are more.
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
from headwater.connectors.manage.status_board import Board, Bulletin
from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import ConflictError, HeadwaterError
from headwater.log.protocol import Log
from headwater.sources.registry import HANDED_OVER
from headwater.sources.webhook_source import WebhookSource

FILE = "hooks.json"
REFUSALS_KEPT = 5
REFUSAL_CHARACTERS_MAX = 200
Outcome = Literal["taken", "repeated", "unsigned", "stale", "malformed", "too-large", "failed"]
"""What becomes of a delivery. 'repeated': it was taken before, and is answered as then."""
TAKEN: tuple[Outcome, ...] = ("taken", "repeated")
"""Outcomes that are no refusals."""
REFUSED = "refused deliveries"
"""The kind of the entries that store how many deliveries to a hook were ever refused."""
STORE_EVERY_MS = 10_000.0
NOT_SERVED = "not served: `headwater serve` takes its deliveries"


@dataclass
class _Counted:
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    taken_at: Microseconds | None = None
    refusals: deque[str] = field(default_factory=lambda: deque(maxlen=REFUSALS_KEPT))
    stored: int = 0
    """How many of the refused ones the log has stored."""

    @property
    def refused(self) -> int:
        """Deliveries that were not taken."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in TAKEN)


def refused_ever(log: Log, name: str) -> int:
    """How many deliveries to a hook were refused, by all servers so far, as the log has it."""
    entry = log.entries(REFUSED).get(name)
    return 0 if entry is None else int(entry.document["refused"])


class Hooks:
    """What is posted to, by name."""

    def __init__(
        self, log: Log, clock: Clock, declared: ConnectorDeclarations[SourceDefinition], board: Board
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
        """The hook of a name, as it is declared now; None if there is none. UsageError if this process lacks what it takes, such as
        its secret."""
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
        """One delivery more; `refusal` says why it was not taken."""
        counted = self._counted.setdefault(name, _Counted())
        counted.outcomes[outcome] += 1
        if outcome == "taken":
            counted.taken_at = self._clock.now_us()
        if refusal is not None:
            counted.refusals.append(refusal[:REFUSAL_CHARACTERS_MAX])

    # --- telling ---------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Deliveries are taken here from now on; others are told, where there are hooks."""
        self._serving = True
        if any(entry.document["kind"] in HANDED_OVER for entry in self._log.entries(SOURCE).values()):
            self._board.keep_telling(self._tell)

    def _tell(self) -> Bulletin:
        if self._clock.steady_ms() - self._stored_ms >= STORE_EVERY_MS:
            self.store()
        return Bulletin(self._clock.now_us(), sources=self.news())

    def store(self) -> None:
        """Add the deliveries that were refused here to what the log has stored, so that a restart does not forget them."""
        self._stored_ms = self._clock.steady_ms()
        for name, counted in list(self._counted.items()):
            while more := counted.refused - counted.stored:
                known = self._log.entries(REFUSED).get(name)
                document = {"refused": refused_ever(self._log, name) + more}
                with suppress(ConflictError):  # another server has stored its own
                    self._log.put_entry(
                        REFUSED, name, document, expect=None if known is None else known.sequence
                    )
                    counted.stored += more

    def rest(self) -> None:
        """None are taken here any more."""
        if self._serving:
            self._serving = False
            self._board.clear()
            self.store()

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each hook that is served, here or by another process."""
        if self._serving:
            return self.news()
        told = self._board.read()
        return {} if told is None else told.sources

    def news(self) -> dict[str, dict[str, Any]]:
        """Of the hooks that are served here."""
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
