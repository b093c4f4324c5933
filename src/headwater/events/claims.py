"""Claims of unique names: records of the topic `_claims`, written in the commit of the events that claim the names.

The topic counts the records of every name (`versioned_by`), and a claim or release names that count: of two concurrent
claims the first wins. The last record of a name has its holder. A private name is stored as a digest, by a key that is
stored with the others: `#` and 32 digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.clock import Clock, Microseconds, from_us, to_us
from headwater.core.errors import ClaimTakenError, UsageError
from headwater.core.types import TIMESTAMP
from headwater.events.command_log import ensure_own_topic
from headwater.events.encrypted_state import digest_of
from headwater.events.event_positions import KeyOffsets
from headwater.events.reservations import Claim, Release
from headwater.log.protocol import Log

TOPIC = "_claims"
SCHEMA = pa.schema(
    [
        pa.field("claim", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("holder", pa.string()),
        pa.field("until", TIMESTAMP),
        pa.field("command_id", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class HeldClaim:
    """The state of a name from its records: its holder, and the end of the claim; `count` is the number of records."""

    count: int
    holder: str | None = None
    until: Microseconds | None = None


class ClaimRegistry:
    """The claims of a workspace, as far as this process has read them."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._key_offsets: KeyOffsets | None = None

    def refresh(self) -> None:
        """Read new claims of other processes."""
        if self._key_offsets is None and TOPIC in self._log.topics():
            self._key_offsets = KeyOffsets(self._log, self._log.topic(TOPIC), ["claim"])
        if self._key_offsets is not None:
            self._key_offsets.refresh()

    def ensure_topic(self) -> TopicDefinition:
        """Return the topic of the claims, created if missing."""
        return ensure_own_topic(self._log, define_topic(TOPIC, SCHEMA, options={"versioned_by": "claim"}))

    def state_of(self, key: str) -> HeldClaim:
        """Return the state of a name."""
        if self._key_offsets is None:
            return HeldClaim(0)
        offsets = self._key_offsets.offsets(0, (key,))[-1:]
        for batch in self._key_offsets.records(0, (key,), offsets, ["claim", "holder", "until", "_version"]):
            row = batch.to_pylist()[-1]
            return HeldClaim(
                row["_version"], row["holder"], None if row["until"] is None else to_us(row["until"])
            )
        return HeldClaim(0)

    def apply(
        self, asked: Iterable[Claim | Release], holder: str, command_id: str, known: dict[str, HeldClaim]
    ) -> tuple[dict[str, HeldClaim], list[dict[str, Any]]]:
        """Return the claims after a command, and its rows; ClaimTakenError if another aggregate holds a name. `known` has
        the claims after the commands before it in the same commit."""
        after: dict[str, HeldClaim] = {}
        rows: list[dict[str, Any]] = []
        for one in asked:
            _check(one)
            name = f"#{digest_of(self._log.keys, one.name)}" if one.private else one.name
            key = f"{one.kind}/{name}"
            now = after.get(key) or known.get(key) or self.state_of(key)
            mine = now.holder == holder
            lapsed = now.until is not None and now.until <= self._clock.now_us()
            if isinstance(one, Release):
                if not mine:
                    continue
                after[key] = HeldClaim(now.count + 1)
            else:
                if now.holder is not None and not mine and not lapsed:
                    raise _taken(one, now)
                until = None if one.until is None else to_us(one.until)
                if mine and now.until == until:
                    continue
                after[key] = HeldClaim(now.count + 1, holder, until)
            rows.append(
                {
                    "claim": key,
                    "kind": one.kind,
                    "name": name,
                    "holder": after[key].holder,
                    "until": one.until if isinstance(one, Claim) else None,
                    "command_id": command_id,
                }
            )
        return after, rows


def _check(one: Claim | Release) -> None:
    kind, name, until = (getattr(one, field, None) for field in ("kind", "name", "until"))
    if not isinstance(kind, str) or not isinstance(name, str) or "/" in kind:
        raise UsageError(
            f"kind and name of a claim must be strings, and the kind without '/': {one!r}",
            hint='Claim("user name", "ada")',
            reason="invalid-claim",
            value=one,
        )
    if until is not None and not isinstance(until, datetime):
        raise UsageError(
            f"until of a claim must be a datetime or None: {one!r}", argument="until", value=until
        )


def _taken(claim: Claim, held: HeldClaim) -> ClaimTakenError:
    until = None if held.until is None else from_us(held.until)
    expiry = "" if until is None else f" until {until:%Y-%m-%d %H:%M:%S} UTC"
    return ClaimTakenError(
        f"{claim.kind} {claim.name!r} is taken{expiry}",
        detail=f"its holder is {held.holder}",
        hint="claim another name, or wait until its holder releases it",
        kind=claim.kind,
        name=claim.name,
        holder=held.holder,
        # as text: the answer is stored as JSON, and a repeated command gets the same facts
        until=None if until is None else until.isoformat(),
    )
