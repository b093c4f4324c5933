"""A consumer group: processes that share a topic's partitions, each partition read by one member at a time.

The group's position is the cursor of the group's name, so the new owner of a partition reads on from the committed position:
rows may come twice (handed out, not committed), are never skipped, and are always in order per partition.

There is no heartbeat thread. A member is alive as long as it reads, commits or calls `beat()`; a member that does none of them
within its timeout is considered dead, its partitions go to others, and its commit fails with FencedError. Work that takes
longer than the timeout calls `beat()` in between.
"""

from __future__ import annotations

import os
import platform
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from headwater.core.clock import Clock, parse_span_us
from headwater.core.errors import FencedError, UsageError
from headwater.log.cursor import AutoCommit, Lag, check_auto_commit, check_name, lag_of, stored_cursor
from headwater.log.protocol import CursorMove, GroupInfo, Log
from headwater.log.reader import (
    BATCH_ROWS,
    OnGap,
    PartitionFeed,
    ReadOptions,
    Start,
    columns_of,
    recreated,
    resolve_start,
    shown_columns,
    wait_ms,
)

BEATS_WHILE_WAITING = 3
BEATS_WHILE_READING = 10
"""Number of beats that a member sends within its timeout."""


@dataclass
class _Share:
    """A partition that this member owns: the committed offset, and the next offset to read."""

    committed: int
    reached: int
    lost: int = 0
    dirty: bool = False
    """Whether rows were handed out that are not committed."""
    leaving_since_ms: float | None = None
    """When another member began to wait for this partition, on the steady clock; None if no member waits."""


class _Feeds:
    """The partitions being read, one batch of each in turn."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._feeds: deque[PartitionFeed] = deque()

    def clear(self) -> None:
        """Stop reading every partition."""
        self._feeds.clear()

    def drop(self, partition: int) -> None:
        """Stop reading a partition."""
        self._feeds = deque(feed for feed in self._feeds if feed.partition != partition)

    def open(
        self, shares: Mapping[int, _Share], options: ReadOptions, ends: Mapping[int, int] | None
    ) -> bool:
        """Start reading the partitions that have unread records; return whether any has. `ends` are the offsets to stop at, by
        default the present ends."""
        bounds = self._log.partitions(self._topic)
        for partition, share in shares.items():
            end = bounds[partition].end if ends is None else ends[partition]
            if share.reached < end:
                feed = PartitionFeed(self._log, self._topic, partition, share.reached, end, options)
                self._feeds.append(feed)
            elif share.reached > bounds[partition].end:
                raise recreated(self._topic)
        return bool(self._feeds)

    def take(self, shares: Mapping[int, _Share]) -> pa.RecordBatch | None:
        """Return the next batch, and advance the share of its partition; None if none is left."""
        while self._feeds:
            feed = self._feeds.popleft()
            share, before = shares[feed.partition], feed.lost
            batch = feed.next()
            share.reached = feed.position
            share.lost += feed.lost - before
            if batch is not None:
                share.dirty = True
                self._feeds.append(feed)
                return batch
        return None


@dataclass(frozen=True)
class MemberOptions:
    """Options of a member's participation in a group."""

    member: str | None = None
    """Name of the member; None generates a unique one."""
    timeout: str | float = "10 seconds"
    """Time without a beat after which the member loses its partitions."""
    start: Start = "earliest"
    """Start position of a new group."""
    on_gap: OnGap = "fail"
    """Reaction when retention removed the records at the position: GapError, or continue at the 'earliest' or 'latest' record."""


class GroupMember:
    """One member of a group. Use it in a `with` block: leaving the block hands its partitions on at once.

    A partition that is assigned to another member is no longer read, and is released as soon as the rows handed out from it are
    committed. If that takes longer than the timeout it is released uncommitted: the rows come again to the next owner, and the
    next commit of this member raises FencedError.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        name: str,
        clock: Clock,
        options: MemberOptions,
    ) -> None:
        self.topic = topic
        self.name = name
        self.member = options.member or f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        for text in (name, self.member):
            check_name(text)
        self._timeout_ms = _timeout_ms(options.timeout)
        self._on_gap: OnGap = ReadOptions(on_gap=options.on_gap).on_gap
        self._log = log
        self._clock = clock
        self._shares: dict[int, _Share] = {}
        self._forfeited: set[int] = set()
        self._feeds = _Feeds(log, topic)
        self._generation = -1
        self._beat_at_ms = 0.0
        self._left = False
        self._pid = os.getpid()
        if log.cursor(topic, name) is None:
            log.create_cursor(topic, name, resolve_start(log, topic, options.start), False)
        self.beat()

    def __repr__(self) -> str:
        return f"<GroupMember {self.member} of {self.name} on {self.topic}>"

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def partitions(self) -> list[int]:
        """Partitions that this member reads, as of its last beat."""
        return sorted(p for p, share in self._shares.items() if share.leaving_since_ms is None)

    def read(
        self,
        *,
        follow: bool = True,
        columns: Sequence[str] | None = None,
        batch_rows: int = BATCH_ROWS,
        commit: AutoCommit | None = None,
        timeout: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of the partitions that this member owns, as they change; each partition from its committed position.

        A member beyond the number of partitions waits until one is assigned to it. `timeout` ends the iteration after so many
        seconds without a batch; `follow=False` when its partitions have been read to their present end. `commit` works as for a
        cursor: "after" commits a batch when the next is asked for, "before" ahead of handing it out.
        """
        self._check_joined()
        check_auto_commit(commit)
        options = ReadOptions(columns_of(columns), batch_rows, self._on_gap)
        shown_columns(self._log.topic(self.topic), options.columns)
        patience = wait_ms(timeout)
        self._rewind()
        return self._batches(options, follow, commit, patience)

    def _batches(
        self, options: ReadOptions, follow: bool, commit: AutoCommit | None, timeout_ms: float | None
    ) -> Iterator[pa.RecordBatch]:
        ends = None if follow else {p: info.end for p, info in self._log.partitions(self.topic).items()}
        idle_since = self._clock.steady_ms()
        while not self._left:
            self._refresh_assignment()
            batch = self._feeds.take(self._shares)
            if batch is None and self._feeds.open(self._mine(), options, ends):
                batch = self._feeds.take(self._shares)
            if batch is not None:
                if commit == "before":
                    self.commit()
                yield batch
                if commit == "after" and not self._left:
                    self.commit()
                idle_since = self._clock.steady_ms()
                continue
            if commit is not None:
                self.commit()  # offsets without a record between the last row and the end
            if not follow or not self._wait(idle_since, timeout_ms):
                return

    def commit(self) -> None:
        """Store durably that everything handed out so far is processed.

        FencedError if this member has lost one of the partitions: its uncommitted rows come again to the new owner. The member
        then no longer reads that partition and continues with the others, which its next commit covers.
        """
        self._check_joined()
        if self._forfeited:
            raise self._fenced()
        move = self._move()
        if not move.positions and not move.lost:
            return
        try:
            self._log.move_cursor(move)
        except FencedError as error:
            self._follow_group(self._log.group(self.topic, self.name))
            raise self._fenced() from error
        self.committed(move)

    def pending_move(self) -> CursorMove:
        """Return the move that `commit()` would store, for `ws.append(..., commit=member)`.

        FencedError if rows were handed out from a partition that this member has since lost: results computed from them must
        not be written. All uncommitted rows are then handed out again, by this member or by the new owner.
        """
        self._check_joined()
        if self._forfeited:
            self._rewind()
            raise self._fenced()
        return self._move()

    def committed(self, move: CursorMove) -> None:
        """Record that a move was stored, and release the partitions that other members wait for."""
        for partition, position in move.positions.items():
            if share := self._shares.get(partition):
                share.committed, share.lost, share.dirty = position, 0, False
        self._hand_over()

    def refused(self) -> None:
        """Record that an append with this member's move was fenced: all uncommitted rows are handed out again."""
        self._follow_group(self._log.group(self.topic, self.name))
        self._forfeited.clear()
        self._rewind()

    def beat(self) -> None:
        """Report that this member is alive, and update the partitions that it owns."""
        self._check_joined()
        self._beat_at_ms = self._clock.steady_ms()
        self._follow_group(self._log.beat(self.topic, self.name, self.member, self._timeout_ms))
        self._hand_over()

    def lag(self) -> Lag:
        """Return how far the whole group is behind the end of the topic."""
        return lag_of(self._log, stored_cursor(self._log, self.topic, self.name), self._clock)

    def leave(self) -> None:
        """Release all partitions at once; uncommitted rows come again to other members."""
        if not self._left and self._pid == os.getpid():
            self._left = True
            self._feeds.clear()
            self._shares.clear()
            self._log.leave(self.topic, self.name, self.member)

    close = leave

    def _check_joined(self) -> None:
        if self._pid != os.getpid():
            raise UsageError(
                f"member {self.member!r} of group {self.name!r} belongs to the process that joined",
                hint="join in the forked process too: topic.group(...)",
                group=self.name,
                member=self.member,
                reason="forked",
            )
        if self._left:
            raise UsageError(
                f"member {self.member!r} has left group {self.name!r}",
                hint="join it again",
                group=self.name,
                member=self.member,
                reason="left",
            )

    def _refresh_assignment(self) -> None:
        """Refresh the assignment; beat if a beat is due, or if the group no longer lists this member."""
        if self._clock.steady_ms() - self._beat_at_ms < self._timeout_ms / BEATS_WHILE_READING:
            info = self._log.group(self.topic, self.name)
            if info is not None and self.member in info.members:
                self._follow_group(info)
                self._hand_over()
                return
        self.beat()

    def _follow_group(self, info: GroupInfo | None) -> None:
        """Start new partitions at their committed position, drop lost ones, and mark the ones to release."""
        owners = info.owners if info else {}
        mine = {p for p, owner in owners.items() if owner == self.member}
        for partition in set(self._shares) - mine:
            self._forget(partition)
        changed = info is not None and info.generation != self._generation
        self._generation = info.generation if info else -1
        if mine - set(self._shares) or changed:
            stored = stored_cursor(self._log, self.topic, self.name).positions
            for partition in mine:
                share = self._shares.get(partition)
                if share is not None and share.committed != stored[partition]:
                    self._forget(partition)  # another member owned it in between, or the cursor was moved
                    share = None
                if share is None:
                    self._shares[partition] = _Share(stored[partition], stored[partition])
        for partition, share in self._shares.items():
            if info is None or info.wanted.get(partition, self.member) == self.member:
                share.leaving_since_ms = None
            elif share.leaving_since_ms is None:
                share.leaving_since_ms = self._clock.steady_ms()
                self._feeds.drop(partition)

    def _hand_over(self) -> None:
        """Release the partitions that other members wait for, once they are committed or the timeout has passed."""
        now = self._clock.steady_ms()
        leaving = {p: s for p, s in self._shares.items() if s.leaving_since_ms is not None}
        done = [
            p
            for p, s in leaving.items()
            if not s.dirty or now - (s.leaving_since_ms or now) >= self._timeout_ms
        ]
        for partition in done:
            self._forget(partition)
        if done:
            self._log.release(self.topic, self.name, self.member, done)

    def _forget(self, partition: int) -> None:
        if self._shares.pop(partition).dirty:
            self._forfeited.add(partition)
        self._feeds.drop(partition)

    def _rewind(self) -> None:
        """Reset every partition to its committed offset, so that uncommitted rows are handed out again."""
        self._feeds.clear()
        for share in self._shares.values():
            share.reached, share.lost, share.dirty = share.committed, 0, False

    def _fenced(self) -> FencedError:
        lost, self._forfeited = sorted(self._forfeited), set()
        return FencedError(
            f"member {self.member!r} of group {self.name!r} no longer owns "
            + (
                f"partition {', '.join(map(str, lost))} of topic {self.topic!r}" if lost else "its partitions"
            ),
            detail="the new owner reads their uncommitted rows; other partitions of this member are not affected",
            hint="continue reading; if processing is slow, call beat() within the timeout, or join with a longer one",
            topic=self.topic,
            group=self.name,
            member=self.member,
            partitions=lost,
        )

    def _move(self) -> CursorMove:
        moved = {p: s for p, s in self._shares.items() if s.reached != s.committed}
        positions = {p: s.reached for p, s in moved.items()}
        return CursorMove(self.topic, self.name, positions, self.member, sum(s.lost for s in moved.values()))

    def _mine(self) -> dict[int, _Share]:
        return {p: self._shares[p] for p in self.partitions}

    def _wait(self, idle_since: float, timeout_ms: float | None) -> bool:
        """Wait for rows, or until the next beat is due; return False once the caller's timeout has passed."""
        patience = self._timeout_ms / BEATS_WHILE_WAITING
        if timeout_ms is not None:
            left = idle_since + timeout_ms - self._clock.steady_ms()
            if left <= 0:
                return False
            patience = min(patience, left)
        self._log.wait(self.topic, {p: share.reached for p, share in self._mine().items()}, patience)
        return True


def _timeout_ms(timeout: str | float) -> float:
    timeout_ms = parse_span_us(timeout) / 1e3 if isinstance(timeout, str) else timeout * 1e3
    if timeout_ms <= 0:
        raise UsageError(
            f"the timeout of a group member must be greater than zero, not {timeout!r}",
            argument="timeout",
            value=timeout,
        )
    return timeout_ms
