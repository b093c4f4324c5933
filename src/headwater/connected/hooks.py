"""The hooks of a workspace: sources that are posted to. Found for who serves HTTP, counted there, and told of to other processes.

The counts are news of one server since it was started, not truth: what was taken is in the log.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.capture.kinds import HANDED_OVER
from headwater.capture.webhook import WebhookSource
from headwater.clock import Clock, Microseconds
from headwater.connected.bulletin import Board, Bulletin
from headwater.connected.declaring import Declared
from headwater.connections import SOURCE, SourceDefinition
from headwater.errors import HeadwaterError
from headwater.log.protocol import Log

FILE = "hooks.json"
REFUSALS_KEPT = 5
REFUSAL_CHARACTERS_MAX = 200
Outcome = Literal["taken", "repeated", "unsigned", "stale", "malformed", "too-large", "failed"]
"""What becomes of a delivery. 'repeated': it was taken before, and is answered as then."""
NOT_SERVED = "not served: `headwater serve` takes its deliveries"


@dataclass
class _Counted:
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    taken_at: Microseconds | None = None
    refusals: deque[str] = field(default_factory=lambda: deque(maxlen=REFUSALS_KEPT))


class Hooks:
    """What is posted to, by name."""

    def __init__(self, log: Log, clock: Clock, declared: Declared[SourceDefinition], board: Board) -> None:
        self._log = log
        self._clock = clock
        self._declared = declared
        self._board = board
        self._open: dict[str, tuple[int, WebhookSource]] = {}
        self._counted: dict[str, _Counted] = {}
        self._serving = False

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
            self._board.keep_telling(lambda: Bulletin(self._clock.now_us(), sources=self.news()))

    def rest(self) -> None:
        """None are taken here any more."""
        if self._serving:
            self._serving = False
            self._board.clear()

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
            taken = counted.outcomes["taken"]
            refused = sum(counted.outcomes.values()) - taken - counted.outcomes["repeated"]
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
                "last_refused": list(counted.refusals),
            }
        return found
