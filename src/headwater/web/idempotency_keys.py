"""Idempotency keys: a post repeated with the same key is answered with its first receipt, and writes nothing.

The keys are records of a topic, written in the same commit as the rows that they are for: after a crash either both
exist or neither does. The append expects the topic to end where this process has read it to, so that of two servers of
one workspace only one succeeds. After a restart, the commit of a key's record identifies the rows that the key was for.

Keys are kept for a day, at most the last 100,000; the topic's retention removes older ones. The ids of webhook
deliveries are keys too, in a topic of their own and for a week, because senders retry for days.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock, Microseconds, parse_span_us
from headwater.core.errors import AlreadyWrittenError, ConflictError, GapError
from headwater.core.positions import Receipt
from headwater.log.commit_history import token_of
from headwater.log.protocol import Append, Log
from headwater.web.problems import Problem
from headwater.web.shared_receipts import Share, own_receipt

TOPIC = "headwater_http_keys"
SCHEMA = "key BINARY NOT NULL, body BINARY NOT NULL, topic STRING NOT NULL, share STRING"
RETENTION = "1 day"
DELIVERIES = "headwater_hook_ids"
DELIVERIES_RETENTION = "7 days"
KEYS_MAX = 100_000
KEY_CHARACTERS_MAX = 255
ATTEMPTS_MAX = 100
"""Attempts of an append when other processes write keys at the same time."""
CONFLICT_WAIT_MS = 20.0

_DIGEST_BYTES = 16
_SHARE = re.compile(r"^(\d+):(\d+)\+(\d+)$")


@dataclass(frozen=True)
class Key:
    """An idempotency key and its body, as digests that reveal neither."""

    name: bytes
    body: bytes

    def of(self, topic: TopicDefinition) -> Key:
        """Return the key for one incarnation of the topic: a topic that was dropped and created again has no keys."""
        said = hashlib.sha256(self.name + topic.incarnation.to_bytes(8, "little", signed=True))
        return Key(said.digest()[:_DIGEST_BYTES], self.body)


@dataclass(frozen=True)
class _UsedKey:
    """A used key. For a key that another process wrote, the receipt is reconstructed when it is requested."""

    body: bytes
    topic: str
    at: Microseconds
    sequence: int
    share: Share | None
    receipt: Receipt | None = None


def key_of(name: str, owner: str, topic: str, kind: str, body: bytes) -> Key:
    """Return the key for a body that a client posts to a topic; keys of different clients and topics never collide."""
    if not name or len(name) > KEY_CHARACTERS_MAX:
        raise Problem(
            400,
            "bad-idempotency-key",
            f"an Idempotency-Key has 1 to {KEY_CHARACTERS_MAX} characters",
            hint="use a random UUID for each request",
        )
    said = hashlib.sha256(f"{owner}\0{topic.lower()}\0{name}".encode())
    content = hashlib.sha256(kind.encode() + b"\0" + body)
    return Key(said.digest()[:_DIGEST_BYTES], content.digest()[:_DIGEST_BYTES])


class IdempotencyKeys:
    """The keys of a workspace, as one process has read them. Callers hold `guard` from `refresh` or `find` to `append`."""

    def __init__(
        self, log: Log, clock: Clock, create: Callable[[], TopicDefinition], retention: str = RETENTION
    ) -> None:
        """`create` creates or finds the topic of the keys; `retention` is how long a key is valid."""
        self.guard = threading.Lock()
        self._log = log
        self._clock = clock
        self._create = create
        self._topic: TopicDefinition | None = None
        self._known: OrderedDict[bytes, _UsedKey] = OrderedDict()
        self._read_to = 0
        self._window_us = parse_span_us(retention)

    def find(self, key: Key) -> Receipt | None:
        """Return the receipt of an earlier post with this key; None if there was none. Problem 422 if that had another body.

        AlreadyWrittenError if the post was written, but its records have been removed since.
        """
        known = self._known.get(key.name)
        if known is None or known.at < self._clock.now_us() - self._window_us:
            return None
        if known.body != key.body:
            raise Problem(
                422,
                "idempotency-key-reused",
                "this Idempotency-Key was used for another body",
                hint="a key stands for one request: use a new key, or send the same bytes again",
            )
        return known.receipt or self._located(known)

    def refresh(self) -> None:
        """Read the keys written by other processes."""
        topic = self._topic_of_keys()
        info = self._log.partitions(topic.name)[0]
        start = max(self._read_to, info.first, info.end - KEYS_MAX)
        columns = ["key", "body", "topic", "share", "_appended_at", "_sequence"]
        for batch in self._log.read(topic.name, 0, start, info.end, columns):
            moments = batch.column("_appended_at").cast(pa.int64()).to_pylist()
            rows = zip(*(batch.column(name).to_pylist() for name in columns[:4]), strict=True)
            sequences = batch.column("_sequence").to_pylist()
            for (name, body, of, share), at, sequence in zip(rows, moments, sequences, strict=True):
                self._remember(name, _UsedKey(body, of, at, sequence, _read_share(share)))
        self._read_to = info.end

    def append(self, append: Append, topic: str, keys: Sequence[tuple[Key, Share | None]]) -> Receipt:
        """Commit rows of a topic together with the keys of their posts; returns the receipt of the rows.

        A share is None if the whole append belongs to the key. ConflictError if another process wrote keys since `refresh`.
        """
        made = self._topic_of_keys()
        rows = [
            {"key": key.name, "body": key.body, "topic": topic, "share": _write_share(share)}
            for key, share in keys
        ]
        whole = Append(
            {**append.batches, made.name: [conform(rows, made)]},
            expect={made.name: {0: self._read_to}},
            incarnations={**append.incarnations, made.name: made.incarnation},
        )
        receipt = self._log.append(whole)
        positions = {name: parts for name, parts in receipt.positions.items() if name != made.name}
        mine, now = Receipt(positions, receipt.commit), self._clock.now_us()
        self._read_to = receipt.positions[made.name][0][1]
        for key, share in keys:
            own = mine if share is None else own_receipt(mine, topic, share)
            self._remember(key.name, _UsedKey(key.body, topic, now, 0, share, own))
        return mine

    def keep_trying(self, act: Callable[[], None]) -> None:
        """Call `act`, which ends in `append`, and repeat it while other processes write keys at the same time. Requires
        `guard`."""
        for _ in range(ATTEMPTS_MAX - 1):
            seen = self._log.sequence()
            try:
                return act()
            except ConflictError as conflict:
                if conflict.facts.get("topic") != self._topic_of_keys().name:
                    raise
                # the other process's commit may not be visible yet
                self._log.wait_commit(seen, CONFLICT_WAIT_MS)
        return act()

    def _topic_of_keys(self) -> TopicDefinition:
        if self._topic is None or self._topic.name not in self._log.topics():
            self._topic = self._create()
            self._read_to = 0
        return self._topic

    def _remember(self, name: bytes, known: _UsedKey) -> None:
        self._known[name] = known
        self._known.move_to_end(name)
        while len(self._known) > KEYS_MAX:
            self._known.popitem(last=False)

    def _located(self, known: _UsedKey) -> Receipt:
        """Reconstruct the receipt of a commit of another process, from its number and append time."""
        found: dict[int, tuple[int, int]] = {}
        partitions = self._log.partitions(known.topic)
        for partition, info in partitions.items():
            if known.share is not None and partition not in known.share:
                continue
            start = self._log.offset_at(known.topic, partition, known.at, "appended")
            offsets: list[int] = []
            try:
                for batch in self._log.read(
                    known.topic, partition, start, info.end, ["_offset", "_sequence"]
                ):
                    sequences = batch.column("_sequence").to_numpy()
                    offsets += batch.column("_offset").to_numpy()[sequences == known.sequence].tolist()
                    if sequences[-1] > known.sequence:
                        break
            except GapError:
                offsets = []
            # below this offset, compaction may have removed some of the records
            if offsets and offsets[0] >= info.compacted_to:
                found[partition] = (offsets[0], offsets[-1] + 1)
        whole = Receipt({known.topic: found} if found else {}, token_of(self._log, known.sequence))
        if known.share is None and found:
            return whole
        if known.share is None or any(p not in found for p in known.share):
            raise AlreadyWrittenError(
                "the rows of this Idempotency-Key were written, and were removed since",
                hint="nothing is left to do",
            )
        return own_receipt(whole, known.topic, known.share)


def _write_share(share: Share | None) -> str | None:
    if share is None:
        return None
    return ",".join(f"{p}:{before}+{rows}" for p, (before, rows) in sorted(share.items()))


def _read_share(text: str | None) -> Share | None:
    if text is None:
        return None
    found = [_SHARE.match(part) for part in text.split(",") if part]
    return {int(m[1]): (int(m[2]), int(m[3])) for m in found if m}
