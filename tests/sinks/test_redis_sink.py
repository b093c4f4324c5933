"""A real Redis as a sink's target: the contract in each form, names and texts, large changes, and other people's keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.clock import ManualClock
from headwater.core.errors import UsageError
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.sink_verify import check
from headwater.sinks.base.target import Target, TargetDownError, TargetShape
from headwater.sinks.redis import target as redis_sink
from headwater.sinks.redis.redis_protocol import Wire, command, tokens
from headwater.sinks.redis.target import As, RedisTarget
from headwater.testing.sinks import ScriptedFeed, SinkContract
from headwater.testing.sinks.sink_contract import row
from tests.raising import raises
from tests.redis import RedisServer


class RedisContract(SinkContract):
    as_: ClassVar[As]
    in_parts: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _place(self, redis_server: RedisServer, redis_url: str) -> Iterator[None]:
        self.server, self.url = redis_server, redis_url
        self.client = redis.Redis.from_url(redis_url)
        yield
        self.client.close()

    def make_target(self) -> Target:
        return RedisTarget(self.url, as_=self.as_)

    @contextmanager
    def break_within(self) -> Iterator[None]:
        """The server ends the connection when the second command of rows, or EXEC, is to come."""
        write, client, written = RedisTarget._write, self.client, []

        def breaking(target: RedisTarget, wire: Wire, commands: Any, end: bytes, marked: bytes) -> None:
            if not commands[0] or (self.in_parts and not written):
                written.extend([1] * bool(commands[0]))
                return write(target, wire, commands, end, marked)
            wire.send(command(b"MULTI"), commands[1])
            wire.lines(1 + commands[0])
            client.client_kill_filter(_type="normal", skipme=True)
            wire.lines(1)
            raise AssertionError("the connection was ended")

        RedisTarget._write = breaking  # type: ignore[method-assign]
        try:
            yield
        finally:
            RedisTarget._write = write  # type: ignore[method-assign]

    def take_down(self) -> None:
        self.client.close()
        self.server.stop()

    def bring_up(self) -> None:
        self.server.start()

    def back_up(self) -> Any:
        return {name: self.client.dump(name) for name in self.client.scan_iter()}

    def put_back(self, backup: Any) -> None:
        self.client.flushdb()
        for name, data in backup.items():
            self.client.restore(name, 0, data)

    def lose_stand(self) -> None:
        self.client.delete("headwater:position:follower")

    def refused_row(self, at: int) -> dict[str, Any]:
        """Somebody else has the name of the row."""
        self.client.delete(f"follower:bad:{at}")
        self.client.rpush(f"follower:bad:{at}", "not ours")
        return row(at, "b", region="bad")

    def take_again(self, at: int) -> None:
        assert self.client.lrange(f"follower:bad:{at}", 0, -1) == [b"not ours"]
        self.client.delete(f"follower:bad:{at}")


class TestHashes(RedisContract):
    as_ = "hash"

    def tamper(self) -> None:
        self.client.hset("follower:ch:1", "name", "tampered")
        self.client.delete("follower:ch:2")
        self.client.hset("follower:xx:9", mapping={"region": "xx", "id": "not a number"})


class TestHashesInParts(TestHashes):
    """Every change is too large for one step."""

    in_parts = True
    many = 60

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_sink, "ROWS_AT_ONCE", 1)
        monkeypatch.setattr(redis_sink, "ROWS_OF_A_PART", 1)


class TestStrings(RedisContract):
    as_ = "string"

    def tamper(self) -> None:
        self.client.set("follower:ch:1", "tampered")
        self.client.delete("follower:ch:2")
        self.client.set("follower:xx:9", "foreign")


class TestSortedSets(RedisContract):
    as_ = "zset"
    takes_null = False

    def make_target(self) -> Target:
        return RedisTarget(self.url, as_="zset", score="score")

    def tamper(self) -> None:
        self.client.zadd("follower:ch", {"1": 77.0})
        self.client.zrem("follower:ch", "2")
        self.client.zadd("follower:xx", {"foreign": 1.0})

    def refused_row(self, at: int) -> dict[str, Any]:
        """It has no score."""
        return {"region": "bad", "id": at, "name": "a", "score": None}

    def take_again(self, at: int) -> None:
        """It is the row's own fault."""


K_V = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64())])


class Follower:
    """A view with some columns, names in Redis, and what happens to both."""

    def __init__(self, url: str, schema: pa.Schema, key: tuple[str, ...] = ("k",), **options: Any) -> None:
        self.clock = ManualClock()
        self.feed = ScriptedFeed(schema, self.clock)
        self.letters: list[Any] = []
        self.target = RedisTarget(url, **options)
        self.shape = TargetShape("s", "v", schema, key)
        self.applier = Applier(
            self.shape, self.target, self.feed, self.clock, on_error="divert", letters=self.letters.append
        )

    def tick(self, rows: list[dict[str, Any]]) -> None:
        self.feed.tick(rows)
        while self.applier.step():
            pass

    @property
    def ok(self) -> bool | None:
        return check(self.applier, self.feed).ok


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as made:
        yield made


@pytest.fixture
def follow(redis_url: str) -> Iterator[Any]:
    made: list[Follower] = []

    def make(schema: pa.Schema = K_V, **options: Any) -> Follower:
        made.append(Follower(redis_url, schema, **options))
        return made[-1]

    yield make
    for follower in made:
        follower.applier.close()


def test_names_and_texts_are_those_that_are_documented(follow: Any, client: Any) -> None:
    schema = pa.schema(
        [
            ("country", pa.string()),
            ("day", pa.date32()),
            ("amount", pa.decimal128(10, 2)),
            ("x", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
        ]
    )
    follower = follow(schema, key=("country", "day"), prefix="cache:")
    row = {
        "country": "a:b%c",
        "day": date(2026, 3, 1),
        "amount": Decimal("1.5"),
        "x": 0.1,
        "at": datetime(2026, 3, 1, tzinfo=UTC),
        "raw": b"raw",
        "tags": ["x", "y"],
    }
    follower.tick([row, {"country": None, "day": None, "x": 1.0}])
    assert sorted(client.scan_iter("*")) == [
        "cache:%N:%N",
        "cache:a%3Ab%25c:2026-03-01",
        "headwater:position:s",
    ]
    assert client.hgetall("cache:a%3Ab%25c:2026-03-01") == {
        "country": "a:b%c",
        "day": "2026-03-01",
        "amount": "1.50",
        "x": "0.1",
        "at": "2026-03-01T00:00:00.000000Z",
        "raw": "raw",
        "tags": '["x","y"]',
    }
    assert client.hgetall("cache:%N:%N") == {"x": "1"}


def test_a_string_is_json(follow: Any, client: Any) -> None:
    follower = follow(as_="string")
    follower.tick([{"k": "a", "v": 2**60}, {"k": 'q"', "v": None}])
    assert client.get("s:a") == '{"k":"a","v":1152921504606846976}'
    assert client.get('s:q"') == '{"k":"q\\""}'


def test_sorted_sets_are_one_or_one_per_rest_of_the_key(follow: Any, client: Any) -> None:
    schema = pa.schema([("game", pa.string()), ("player", pa.string()), ("points", pa.int64())])
    rows = [
        {"game": "chess", "player": "ann", "points": 7},
        {"game": "chess", "player": "bob", "points": 9},
        {"game": "go", "player": "ann", "points": 1},
    ]
    each = follow(schema, key=("game", "player"), as_="zset", score="points", prefix="top:")
    each.tick(rows)
    assert client.zrange("top:chess", 0, -1, desc=True, withscores=True) == [("bob", 9.0), ("ann", 7.0)]
    assert client.zscore("top:go", "ann") == 1.0
    each.tick(rows[1:])
    assert client.zrange("top:chess", 0, -1) == ["bob"]
    assert each.ok


def test_one_sorted_set_of_all_rows(follow: Any, client: Any) -> None:
    schema = pa.schema([("player", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    follower = follow(schema, key=("player",), as_="zset", score="at", prefix="recent")
    client.zadd("recently", {"somebody": 1})
    rows = [
        {"player": f"p{i}", "at": datetime(2026, 1, 1, 0, 0, i % 60, i, tzinfo=UTC)} for i in range(25_000)
    ]
    follower.tick(rows)
    assert client.zcard("recent") == 25_000
    assert client.zscore("recent", "p7") == datetime(2026, 1, 1, 0, 0, 7, 7, tzinfo=UTC).timestamp()
    assert follower.ok
    client.zincrby("recent", 1, "p24999")
    assert follower.ok is False
    assert check(follower.applier, follower.feed, repair=True).repaired
    assert client.zrange("recently", 0, -1) == ["somebody"]


def test_a_large_change_is_seen_to_be_under_way_until_it_is_whole(
    follow: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"k": str(i), "v": i} for i in range(25_000)]
    follower = follow()
    seen = []
    write = RedisTarget._write

    def spy(target: RedisTarget, *given: Any) -> None:
        write(target, *given)
        seen.append('"whole":false' in client.get("headwater:position:s"))

    monkeypatch.setattr(RedisTarget, "_write", spy)
    follower.tick(rows)
    assert seen == [True] * (len(seen) - 1) + [False]
    assert len(seen) == 15
    assert follower.ok
    follower.tick(rows[:9_999])
    assert client.dbsize() == 10_000
    assert follower.ok


def test_what_others_have_under_the_prefix_is_not_touched(follow: Any, client: Any) -> None:
    client.rpush("s:a", "theirs")
    client.set("s:b", "theirs")
    client.set("other", "theirs")
    follower = follow()
    follower.tick([{"k": "a", "v": 1}, {"k": "c", "v": 3}])
    follower.tick([{"k": "b", "v": 2}])
    follower.tick([])
    assert (client.lrange("s:a", 0, -1), client.get("s:b"), client.get("other")) == (
        ["theirs"],
        "theirs",
        "theirs",
    )
    reasons = [reason for letters in follower.letters for reason in letters.reasons]
    assert reasons == ["b's:a' is a list of another program", "b's:b' is a string of another program"]
    assert follower.ok


def test_a_field_that_somebody_added_is_found(follow: Any, client: Any) -> None:
    follower = follow()
    follower.tick([{"k": "a", "v": 1}])
    client.hset("s:a", "note", "mine")
    found = check(follower.applier, follower.feed)
    assert found.ok is False
    assert check(follower.applier, follower.feed, repair=True).repaired
    assert client.hgetall("s:a") == {"k": "a", "v": "1"}


def test_a_position_that_is_not_ours_is_no_position(follow: Any, client: Any) -> None:
    client.set("headwater:position:s", "what is this")
    follower = follow()
    follower.tick([{"k": "a", "v": 1}])
    assert follower.ok


def test_values_with_ends_of_lines_and_heads_are_read_as_they_are(follow: Any) -> None:
    odd = ["\r\n", "$3\r\nabc\r\n", "$-1", "*2", "$5", "", "\n", "-ERR no", ":7", "$3", "a\r"]
    schema = pa.schema([("k", pa.string()), ("v", pa.string()), ("w", pa.string())])
    for as_ in ("hash", "string"):
        follower = follow(schema, as_=as_, prefix=f"{as_}:")
        follower.tick(
            [{"k": text, "v": odd[i - 1], "w": None if i % 3 else text} for i, text in enumerate(odd)]
        )
        assert follower.ok


def test_a_sink_made_anew_in_another_form_does_not_go_on_from_the_old_one(follow: Any, client: Any) -> None:
    rows = [{"k": "a", "v": 1}, {"k": "b", "v": 1}]
    follow().tick(rows)
    for options in (
        {"prefix": "t:"},
        {"prefix": "u:", "as_": "string"},
        {"prefix": "u:", "key": ("v", "k"), "as_": "string"},
    ):
        follower = follow(**options)
        follower.tick(rows)
        assert follower.ok, options
    assert sorted(client.scan_iter("u:*")) == ["u:1:a", "u:1:b"]


@given(
    st.lists(
        st.one_of(st.none(), st.binary(max_size=6), st.sampled_from([b"$-1", b"\r\n", b"$2"])), max_size=12
    )
)
def test_replies_are_read_as_they_were_written(values: list[bytes | None]) -> None:
    data = b"".join(b"$-1\r\n" if v is None else b"$%d\r\n%b\r\n" % (len(v), v) for v in values)
    data = b"*%d\r\n" % len(values) + data + b":12\r\n"
    assert tokens(data).to_pylist() == [b"*%d" % len(values), *values, b":12"]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"as_": "list"}, "as"),
        ({"as_": "zset"}, "score"),
        ({"score": "v"}, "score"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], option: str) -> None:
    with raises(UsageError, option=option):
        RedisTarget("redis://", **options)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"prefix": ""}, {"option": "prefix"}),
        ({"as_": "zset", "score": "k"}, {"option": "score", "column": "k"}),
        ({"as_": "zset", "score": "w"}, {"view": "v", "column": "w"}),
        ({"as_": "zset", "score": "v", "member": ("v",)}, {"option": "member"}),
    ],
)
def test_options_that_do_not_fit_the_view_are_refused(
    redis_url: str, options: dict[str, Any], facts: dict[str, str]
) -> None:
    with raises(UsageError, **facts):
        RedisTarget(redis_url, **options).prepare(TargetShape("s", "v", K_V, ("k",)))


def test_a_server_that_is_not_there_is_tried_again() -> None:
    with raises(TargetDownError, sink="s"):
        RedisTarget("redis://127.0.0.1:1/0").prepare(TargetShape("s", "v", K_V, ("k",)))
    with raises(UsageError, sink="s", option="url"):
        RedisTarget("postgres://x").prepare(TargetShape("s", "v", K_V, ("k",)))


def test_a_server_without_memory_is_tried_again(follow: Any, client: Any) -> None:
    follower = follow()
    follower.tick([{"k": "a", "v": 1}])
    client.config_set("maxmemory", 1)
    try:
        follower.feed.tick([{"k": "a", "v": 2}, {"k": "b", "v": 1}])
        with raises(TargetDownError, sink="s") as caught:
            follower.applier.step()
        assert "OOM" in caught.value.message
    finally:
        client.config_set("maxmemory", 0)
    assert client.hgetall("s:a") == {"k": "a", "v": "1"}
    assert follower.applier.step()
    assert follower.ok
