"""Writes posts as appends: concurrent posts to one topic share a commit (group commit), and each has its own receipt.

While a group is written and synced, the next one collects, so that many clients share a sync and a single one does not
wait. A post that does not conform to the topic fails alone. The waiting posts are bounded, by number and by bytes:
further posts are rejected with 429. The event loop accepts posts and passes them to a group commit per topic; worker
threads decode, check and write them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.core.errors import BacklogError, BadRowError, HeadwaterError, UsageError
from headwater.core.group_commit import GroupCommit, Limits, Request
from headwater.core.positions import Receipt
from headwater.log.protocol import Append, Log
from headwater.log.topic_names import check_written
from headwater.sources.clock_positions import captured, rows_of
from headwater.web.idempotency_keys import IdempotencyKeys, Key
from headwater.web.problems import Problem, retry_after
from headwater.web.request_bodies import BodyReader, Media, Rows
from headwater.web.server_settings import ServerSettings
from headwater.web.shared_receipts import Share, own_receipt, shares_after, shares_of

GROUP_POSTS_MAX = 2_000
GROUP_BYTES_MAX = 4 << 20
"""Size at which a group is closed, in bytes; a post of this size is written alone."""
DECODED_BYTES_MAX = 64 << 20
"""Decoded size of Arrow streams above which a group is split into several commits."""
OVERLAP_BYTES = 256 << 10
"""Bytes waiting for a topic from which the next group is decoded while another is synced. Fewer wait until the sync is
done."""
LIMITS = Limits(most=GROUP_POSTS_MAX, weight_max=GROUP_BYTES_MAX, overlap_weight=OVERLAP_BYTES)

SMALL_BYTES = 256 << 10
"""Size above which bodies have their own threads and may not fill all of the space: many large bodies keep no small one
out."""
SMALL_SHARE = 8
"""Fraction of the bytes in flight, as 1/n, that is reserved for small bodies."""
STRANGERS_SHARE = 4
"""Fraction of the bytes in flight, as 1/n, that bodies of unauthenticated senders may use."""


@dataclass(frozen=True)
class PostResult:
    """The result of a post. `replayed`: the post was written before, with the same idempotency key."""

    receipt: Receipt
    replayed: bool = False


@dataclass(frozen=True)
class DeliveryOrigin:
    """The origin of a row that was pushed to a source: the parsed row, and the time at which it was sent."""

    source: str
    row: Mapping[str, Any]
    sent_us: Microseconds


class Post(Request):
    """A body that waits to be written. With `origin` it was parsed already, and belongs to a source."""

    def __init__(
        self, body: bytes, media: Media, key: Key | None, origin: DeliveryOrigin | None = None
    ) -> None:
        super().__init__()
        self.body = body
        self.media = media
        self.key = key
        self.origin = origin
        self.weight = len(body)
        self.answer: PostResult | None = None

    @property
    def open(self) -> bool:
        """Whether the post has no result yet."""
        return self.answer is None and self.error is None


class _Lane:
    """The small or the large posts for one topic."""

    def __init__(self, gathering: GroupCommit[Post]) -> None:
        self.gathering = gathering
        self.posts = 0
        """Number of posts that are not written yet."""


class Ingest:
    """Accepts posts for the topics of a workspace. Methods are called from the event loop's thread."""

    def __init__(
        self,
        log: Log,
        keys: IdempotencyKeys,
        threads: Executor,
        settings: ServerSettings,
        deliveries: IdempotencyKeys | None = None,
        large_threads: Executor | None = None,
    ) -> None:
        """`deliveries` are the idempotency keys of sources' deliveries; `large_threads` write posts that are not small."""
        self._writing = _Writing(
            log, keys, deliveries or keys, settings.body_bytes_max, settings.body_rows_max
        )
        self._threads = threads
        self._large_threads = large_threads or threads
        self._settings = settings
        self._lanes: dict[tuple[str, bool], _Lane] = {}
        self._posts = 0
        self._bytes = 0

    def check(self, size: int, of: int | None = None) -> None:
        """Raise Problem 429 if there is no space for `size` more bytes now; `of` is the minimum size of the whole body."""
        most = self._settings.in_flight_bytes_max
        if max(size, of or 0) > SMALL_BYTES:
            most -= most // SMALL_SHARE
        full = self._bytes + size > most
        if full or self._posts >= self._settings.posts_waiting_max:
            raise _too_busy("too many bytes" if full else "too many requests", self._settings)

    def reserve(self, size: int, of: int | None = None) -> None:
        """Reserve space for received bytes; `of` is the number of bytes of the body received by now. Problem 429 if
        there is none."""
        self.check(size, of)
        self._bytes += size

    def release(self, size: int) -> None:
        """Release reserved space."""
        self._bytes -= size

    async def append(
        self, topic: str, body: bytes, media: Media, key: Key | None, origin: DeliveryOrigin | None = None
    ) -> PostResult:
        """Write a post; returns when it is durable. The post is written even if the client has gone."""
        is_large = len(body) > SMALL_BYTES
        name = (topic.lower(), is_large)
        if name not in self._lanes:
            self._lanes[name] = _Lane(GroupCommit(partial(self._writing.write, topic), LIMITS))
        lane, post = self._lanes[name], Post(body, media, key, origin)
        lane.posts += 1
        self._posts += 1
        written = lane.gathering.post(post, self._large_threads if is_large else self._threads)
        written.add_done_callback(lambda _: self._finish(name, lane))
        await _end_of(written, self._settings.write_s)
        if not written.done():
            raise _not_written_yet(self._settings)
        if post.answer is not None:
            return post.answer
        raise post.error or RuntimeError("a post was forgotten")

    async def drain(self) -> None:
        """Wait until all accepted posts are written."""
        while self._lanes:
            await asyncio.sleep(0.01)

    def _finish(self, name: tuple[str, bool], lane: _Lane) -> None:
        self._posts -= 1
        lane.posts -= 1
        if not lane.posts:
            self._lanes.pop(name, None)


async def _end_of(work: asyncio.Future[None], seconds: float) -> None:
    """Wait until work is done, at most `seconds`. The work continues if the waiting task is cancelled."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    work.add_done_callback(end)
    timer = loop.call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()


class Strangers:
    """Space for bodies whose senders are authenticated only after the whole body was read, such as signed webhooks: a
    part of the total, so that they cannot crowd out clients with a token. Methods are called from the event loop's
    thread, as those of `Ingest`."""

    def __init__(self, ingest: Ingest, settings: ServerSettings) -> None:
        self._ingest = ingest
        self._settings = settings
        self._bytes = 0

    def check(self, size: int, of: int | None = None) -> None:
        """Raise Problem 429 if there is no space; see `Ingest.check`."""
        if self._bytes + size > self._settings.in_flight_bytes_max // STRANGERS_SHARE:
            raise _too_busy("too many bytes", self._settings)
        self._ingest.check(size, of)

    def reserve(self, size: int, of: int | None = None) -> None:
        """Reserve space; see `Ingest.reserve`."""
        self.check(size, of)
        self._ingest.reserve(size, of)
        self._bytes += size

    def release(self, size: int) -> None:
        """Release reserved space."""
        self._ingest.release(size)
        self._bytes -= size


def _too_busy(what: str, settings: ServerSettings) -> Problem:
    return Problem(
        429,
        "too-busy",
        f"the buffer of requests to write is full: {what}",
        hint="retry later; fewer and larger bodies are faster",
        headers=retry_after(settings.retry_after_s),
    )


def _not_written_yet(settings: ServerSettings) -> Problem:
    return Problem(
        504,
        "not-written-yet",
        f"the rows were not written within {settings.write_s:g} s; they may be written later",
        hint="send the same body again under the same Idempotency-Key: it is written once",
        facts={"seconds_max": settings.write_s},
    )


class _Writing:
    """Decodes, checks and writes the posts of a group; runs in worker threads."""

    def __init__(
        self,
        log: Log,
        keys: IdempotencyKeys,
        deliveries: IdempotencyKeys,
        body_bytes_max: int,
        body_rows_max: int = ServerSettings.body_rows_max,
    ) -> None:
        self._log = log
        self._keys = keys
        self._deliveries = deliveries
        self._body_bytes_max = body_bytes_max
        self._body_rows_max = body_rows_max

    def write(self, name: str, group: Sequence[Post]) -> None:
        """Settle every post of a group, with a receipt or an error. Small groups are one commit."""
        topic = self._log.topic(name)
        reader = BodyReader(topic, self._body_bytes_max, self._body_rows_max)
        decoded: list[tuple[Post, Rows]] = []
        size = 0
        for post in group:
            post.key = None if post.key is None else post.key.of(topic)
            if post.origin is not None:
                continue
            try:
                rows = reader.rows(post.body, post.media)
            except (HeadwaterError, Problem) as error:
                post.error = error
                continue
            decoded.append((post, rows))
            size += reader.size
            if (
                size > DECODED_BYTES_MAX
            ):  # rows may be much larger than their bodies: such a group is never in memory as a whole
                self._settle(topic, _conformed(decoded, topic))
                decoded, size = [], 0
        fit = _conformed(decoded, topic)
        handed = [(post, post.origin) for post in group if post.origin is not None]
        if handed:
            fit += _captured(handed, topic)
        self._settle(topic, fit)

    def _settle(self, topic: TopicDefinition, fit: Sequence[tuple[Post, pa.RecordBatch]]) -> None:
        keys = self._keys if topic.captured_by is None else self._deliveries
        if any(post.key is not None for post, _ in fit):
            with keys.guard:
                keys.keep_trying(lambda: self._write_keyed(topic, fit, keys))
        else:
            self._append(topic, fit, keys)

    def _write_keyed(
        self, topic: TopicDefinition, fit: Sequence[tuple[Post, pa.RecordBatch]], keys: IdempotencyKeys
    ) -> None:
        """Write posts with idempotency keys: posts with used keys are answered, new ones are written together with
        their keys."""
        keys.refresh()
        fresh: dict[bytes, Post] = {}
        again: list[tuple[Post, Post]] = []
        rows: list[tuple[Post, pa.RecordBatch]] = []
        for post, batch in fit:
            if not post.open:
                continue
            if post.key is None:
                rows.append((post, batch))
            elif (first := fresh.get(post.key.name)) is not None:
                again.append((post, first))
            elif not _answered(post, post.key, keys):
                fresh[post.key.name] = post
                rows.append((post, batch))
        self._append(topic, rows, keys)
        for post, first in again:
            assert post.key is not None
            if not _answered(post, post.key, keys):
                post.error = first.error

    def _append(
        self, topic: TopicDefinition, fit: Sequence[tuple[Post, pa.RecordBatch]], keys: IdempotencyKeys
    ) -> None:
        """Write posts in one commit; if the log rejects it because of its content, write each post alone."""
        if not fit:
            return
        try:
            self._commit(topic, fit, keys)
        except (BadRowError, UsageError, BacklogError) as error:  # posts that are still open were not written
            if len(fit) == 1:
                fit[0][0].error = error
                return
            for one in fit:
                if one[0].open:  # earlier posts may already have been written alone
                    self._append(topic, [one], keys)

    def _commit(
        self, topic: TopicDefinition, fit: Sequence[tuple[Post, pa.RecordBatch]], keys: IdempotencyKeys
    ) -> None:
        batches = [batch for _, batch in fit]
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        append = Append({topic.name: [rows]}, incarnations={topic.name: topic.incarnation})
        counts = [batch.num_rows for batch in batches]
        shares = None if len(fit) == 1 else shares_of(rows, counts, topic)
        keyed = [(post.key, place) for place, (post, _) in enumerate(fit) if post.key is not None]
        if (
            keyed and shares is None and len(fit) > 1
        ):  # the log decides the partitions, and a key must record them
            for one in fit:
                self._commit(topic, [one], keys)
            return
        if keyed:
            owned: list[tuple[Key, Share | None]] = [
                (key, None if shares is None else shares[place]) for key, place in keyed
            ]
            receipt = keys.append(append, topic.name, owned)
        else:
            receipt = self._log.append(append)
        if len(fit) == 1:
            fit[0][0].answer = PostResult(receipt)
            return
        for (post, _), share in zip(fit, shares or shares_after(counts, receipt, topic.name), strict=True):
            post.answer = PostResult(own_receipt(receipt, topic.name, share))


def _answered(post: Post, key: Key, keys: IdempotencyKeys) -> bool:
    """Whether the recorded use of its key settles a post."""
    try:
        receipt = keys.find(key)
    except (HeadwaterError, Problem) as error:
        post.error = error
        return True
    if receipt is None:
        return False
    post.answer = PostResult(receipt, replayed=True)
    return True


def _captured(
    handed: Sequence[tuple[Post, DeliveryOrigin]], topic: TopicDefinition
) -> list[tuple[Post, pa.RecordBatch]]:
    """Return the rows pushed to sources as batches that conform to the topic; rows that do not conform are settled with
    an error."""
    rows, sent = [origin.row for _, origin in handed], [origin.sent_us for _, origin in handed]
    try:
        if any(origin.source != topic.captured_by for _, origin in handed):
            raise UsageError(f"this source does not fill topic {topic.name!r}", topic=topic.name)
        batch = captured(conform(rows, rows_of(topic), captured=True), topic, sent, sent)
        return [(post, batch.slice(place, 1)) for place, (post, _) in enumerate(handed)]
    except HeadwaterError as error:
        if len(handed) > 1:
            return [one for each in handed for one in _captured([each], topic)]
        handed[0][0].error = error
        return []


def _conformed(
    decoded: Sequence[tuple[Post, Rows]], topic: TopicDefinition
) -> list[tuple[Post, pa.RecordBatch]]:
    """Return the rows of posts as batches that conform to the topic; posts that do not conform are settled with an error."""
    try:
        check_written(topic)
    except UsageError as error:
        for post, _ in decoded:
            post.error = error
        return []
    lists = [(post, rows) for post, rows in decoded if isinstance(rows, list)]
    if len(lists) > 1 and len(lists) == len(decoded):
        try:
            batch = conform([row for _, rows in lists for row in rows], topic)
        except (HeadwaterError, RecursionError):
            pass  # one post does not conform; the loop below finds it
        else:
            fit, at = [], 0
            for post, rows in lists:
                fit.append((post, batch.slice(at, len(rows))))
                at += len(rows)
            return fit
    fit = []
    for post, rows in decoded:
        try:
            is_arrow = isinstance(rows, pa.Table)  # validated when it was read
            fit.append((post, conform(rows, topic, validated=is_arrow)))
        except HeadwaterError as error:
            post.error = error
    return fit
