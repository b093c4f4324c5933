"""The home timeline of docs/home-timeline.md: the newest posts of those that one follows, kept through all that happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.testing import inspect_workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PER_AUTHOR, SEEN = 3, 4
"""How many posts of an author are kept, and how many a reader sees at once."""
START = datetime(2026, 1, 1, tzinfo=UTC)
TOPICS = """
    CREATE TOPIC accounts (id BIGINT, name STRING, PRIMARY KEY (id));
    CREATE TOPIC posts (id BIGINT, author BIGINT, text STRING, at TIMESTAMP, PRIMARY KEY (id));
    CREATE TOPIC follows (follower BIGINT, author BIGINT, PRIMARY KEY (follower, author));
    CREATE TOPIC online (account BIGINT, PRIMARY KEY (account));
"""
VIEWS = f"""
    CREATE MATERIALIZED VIEW recent AS
      SELECT p.author, p.id, p.at, a.name, p.text
      FROM posts p JOIN accounts a ON a.id = p.author
      QUALIFY row_number() OVER (PARTITION BY p.author ORDER BY p.at DESC, p.id DESC) <= {PER_AUTHOR};

    CREATE MATERIALIZED VIEW timeline AS
      SELECT f.follower, r.at, r.id, r.author, r.name, r.text
      FROM follows f JOIN recent r ON r.author = f.author
      WHERE f.follower IN (SELECT id FROM accounts)
      QUALIFY row_number() OVER (PARTITION BY f.follower ORDER BY r.at DESC, r.id DESC) <= {SEEN};

    CREATE MATERIALIZED VIEW home AS
      SELECT o.account AS reader, r.at, r.id, r.author, r.name, r.text
      FROM online o JOIN follows f ON f.follower = o.account JOIN recent r ON r.author = f.author
      WHERE o.account IN (SELECT id FROM accounts)
      QUALIFY row_number() OVER (PARTITION BY o.account ORDER BY r.at DESC, r.id DESC) <= {SEEN};
"""
LISTS = """
    CREATE MATERIALIZED VIEW lists AS
      SELECT reader, array_agg(struct(at, name, text) ORDER BY at DESC, id DESC) AS posts
      FROM home GROUP BY reader;
"""

Line = tuple[datetime, int, str, str]
"""The time of a post, its number, its author's name and its text."""
Post = tuple[int, str, datetime]
"""Its author, its text and its time."""


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


class Network:
    """The same in Python: what everyone did, and what everyone's timeline is, by plain loops."""

    def __init__(self) -> None:
        self.accounts: dict[int, str] = {}
        self.posts: dict[int, Post] = {}
        self.follows: set[tuple[int, int]] = set()
        self.online: set[int] = set()

    def recent(self, author: int) -> list[Line]:
        """The newest posts of an author, newest first."""
        lines = [
            (when, number, self.accounts[author], text)
            for number, (by, text, when) in self.posts.items()
            if by == author and author in self.accounts
        ]
        return sorted(lines, reverse=True, key=lambda line: line[:2])[:PER_AUTHOR]

    def timelines(self) -> dict[int, list[Line]]:
        """By follower the newest posts of those followed, newest first."""
        found = {}
        for follower in self.accounts:
            lines = [line for who, author in self.follows if who == follower for line in self.recent(author)]
            if lines:
                found[follower] = sorted(lines, reverse=True, key=lambda line: line[:2])[:SEEN]
        return found

    def holds(self, ws: hw.Workspace) -> None:
        """Compare the views with it."""
        wanted = self.timelines()
        assert lines(ws, "timeline") == wanted
        shown = {who: wanted[who] for who in wanted.keys() & self.online}
        assert lines(ws, "home") == shown
        assert {row["reader"]: row["posts"] for row in ws.view("lists").read().to_pylist()} == {
            who: [{"at": when, "name": name, "text": text} for when, _, name, text in posts]
            for who, posts in shown.items()
        }


def lines(ws: hw.Workspace, view: str) -> dict[int, list[Line]]:
    """What a flat view has, in the form of the model."""
    found: dict[int, list[Line]] = {}
    for row in ws.view(view).read().to_pylist():
        who = row["follower" if view == "timeline" else "reader"]
        found.setdefault(who, []).append((row["at"], row["id"], row["name"], row["text"]))
    return {who: sorted(posts, key=lambda p: p[:2], reverse=True) for who, posts in found.items()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """One workspace for all stories, which keep to numbers of their own; what they leave is what batch computes."""
    with hw.open(tmp_path_factory.mktemp("network") / "ws", durability="os", spark=spark) as ws:
        ws.sql(TOPICS + VIEWS + LISTS)
        yield ws
        assert ws.verify().differences == ()


class Story:
    """Three accounts of their own: Ann follows Bob and Cem."""

    def __init__(self, ws: hw.Workspace, base: int) -> None:
        self._ws = ws
        self.ann, self.bob, self.cem = base, base + 1, base + 2
        self._first = base * 10
        names = {self.ann: "Ann", self.bob: "Bob", self.cem: "Cem"}
        ws.append(
            {
                "accounts": [{"id": number, "name": name} for number, name in names.items()],
                "follows": [{"follower": self.ann, "author": a} for a in (self.bob, self.cem)],
                "online": [{"account": self.ann}],
            }
        )

    def post(self, number: int, author: int, text: str, minute: int | None = None) -> None:
        row = {"id": self._first + number, "author": author, "text": text}
        self._ws.topic("posts").append([row | {"at": at(number if minute is None else minute)}])

    def delete(self, number: int) -> None:
        self._ws.topic("posts").delete([{"id": self._first + number}])

    def sees(self, who: int, *posts: str) -> None:
        """What `who` has, newest first, as `name: text`; Ann is online, and has it as a list too."""
        assert self._ws.run().stopped == {}
        rows = self._ws.query(
            f"SELECT name, text FROM timeline WHERE follower = {who} ORDER BY at DESC, id DESC"
        )
        assert [f"{row['name']}: {row['text']}" for row in rows.to_pylist()] == list(posts)
        listed = self._ws.query(f"SELECT posts FROM lists WHERE reader = {who}").to_pylist()
        told = [f"{post['name']}: {post['text']}" for row in listed for post in row["posts"]]
        assert told == (list(posts) if who == self.ann else [])


def test_a_post_is_seen_by_followers_alone_newest_first_and_no_more_than_the_newest(
    shared: hw.Workspace,
) -> None:
    story = Story(shared, 100)
    story.post(1, story.bob, "one")
    story.post(2, story.cem, "two")
    story.post(3, story.ann, "mine")
    story.sees(story.ann, "Cem: two", "Bob: one")
    story.sees(story.bob)
    for number in (4, 5, 6):
        story.post(number, story.bob, str(number))
    story.sees(story.ann, "Bob: 6", "Bob: 5", "Bob: 4", "Cem: two")
    story.post(7, story.cem, "of long ago", minute=0)
    story.sees(story.ann, "Bob: 6", "Bob: 5", "Bob: 4", "Cem: two")


def test_edits_change_a_post_where_it_is_and_a_deleted_one_makes_room_for_an_older(
    shared: hw.Workspace,
) -> None:
    story = Story(shared, 200)
    for number in range(1, 7):
        story.post(number, story.bob, str(number))
    story.sees(story.ann, "Bob: 6", "Bob: 5", "Bob: 4")
    story.post(5, story.bob, "five")
    story.sees(story.ann, "Bob: 6", "Bob: five", "Bob: 4")
    story.delete(6)
    story.sees(story.ann, "Bob: five", "Bob: 4", "Bob: 3")
    story.delete(5)
    story.delete(1)
    story.sees(story.ann, "Bob: 4", "Bob: 3", "Bob: 2")


def test_who_is_followed_comes_with_history_and_goes_with_it(shared: hw.Workspace) -> None:
    story = Story(shared, 300)
    for number in range(1, 7):
        story.post(number, story.bob if number % 2 else story.cem, str(number))
    story.sees(story.cem)
    shared.topic("follows").append([{"follower": story.cem, "author": story.bob}])
    story.sees(story.cem, "Bob: 5", "Bob: 3", "Bob: 1")
    story.sees(story.ann, "Cem: 6", "Bob: 5", "Cem: 4", "Bob: 3")
    shared.topic("follows").delete([{"follower": story.ann, "author": story.bob}])
    story.sees(story.ann, "Cem: 6", "Cem: 4", "Cem: 2")
    story.sees(story.cem, "Bob: 5", "Bob: 3", "Bob: 1")


def test_a_new_name_is_on_all_posts_and_a_deleted_account_takes_its_posts_and_timeline_along(
    shared: hw.Workspace,
) -> None:
    story = Story(shared, 400)
    shared.topic("follows").append([{"follower": story.cem, "author": story.bob}])
    for number in range(1, 4):
        story.post(number, story.bob if number % 2 else story.cem, str(number))
    shared.topic("accounts").append([{"id": story.bob, "name": "Robert"}])
    story.sees(story.ann, "Robert: 3", "Cem: 2", "Robert: 1")
    shared.topic("accounts").delete([{"id": story.bob}])
    story.sees(story.ann, "Cem: 2")
    story.sees(story.cem)
    shared.topic("accounts").delete([{"id": story.ann}])
    story.sees(story.ann)
    # the posts and follows are still in their topics: whoever comes back finds them
    shared.topic("accounts").append([{"id": story.bob, "name": "Bob"}, {"id": story.ann, "name": "Ann"}])
    story.sees(story.ann, "Bob: 3", "Cem: 2", "Bob: 1")


def test_lists_are_there_for_those_who_want_them(shared: hw.Workspace) -> None:
    story = Story(shared, 500)
    story.post(1, story.bob, "one")
    story.sees(story.ann, "Bob: one")
    shared.topic("online").delete([{"account": story.ann}])
    shared.run()
    query = f"SELECT size(posts) AS n FROM lists WHERE reader = {story.ann}"
    assert shared.query(query).num_rows == 0
    story.post(2, story.bob, "two")
    shared.topic("online").append([{"account": story.ann}])
    story.sees(story.ann, "Bob: two", "Bob: one")


def step(network: Network, chance: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Something that happens, in the model and as rows to append."""
    who, other = chance.randrange(6), chance.randrange(6)
    match chance.choice(
        ["post", "post", "post", "edit", "delete", "follow", "follow", "unfollow", "name", "go"]
    ):
        case "post":
            number, when = len(network.posts) + chance.randrange(40), at(chance.randrange(30))
            network.posts[number] = (who, chance.choice("abc"), when)
            return {"posts": [_post(network, number)]}
        case "edit" if network.posts:
            number = chance.choice(sorted(network.posts))
            author, text, when = network.posts[number]
            network.posts[number] = (author, text + "!", chance.choice([when, at(chance.randrange(30))]))
            return {"posts": [_post(network, number)]}
        case "delete" if network.posts:
            del network.posts[number := chance.choice(sorted(network.posts))]
            return {"posts": [{"id": number, "_op": "delete"}]}
        case "follow":
            network.follows.add((who, other))
            return {"follows": [{"follower": who, "author": other, "_op": "upsert"}]}
        case "unfollow":
            network.follows.discard((who, other))
            return {"follows": [{"follower": who, "author": other, "_op": "delete"}]}
        case "go" if len(network.accounts) > 3:
            network.accounts.pop(who, None)
            network.online ^= {other}
            here = "upsert" if other in network.online else "delete"
            return {
                "accounts": [{"id": who, "_op": "delete"}],
                "online": [{"account": other, "_op": here}],
            }
        case _:
            network.accounts[who] = chance.choice(["x", "y", "z"])
            return {"accounts": [{"id": who, "name": network.accounts[who]}]}


def _post(network: Network, number: int) -> dict[str, Any]:
    author, text, when = network.posts[number]
    return {"id": number, "author": author, "text": text, "at": when}


@pytest.mark.parametrize("seed", range(1))
def test_whatever_happens_timelines_are_those_of_the_model_also_after_a_restart(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    network, chance = Network(), random.Random(seed)
    for run in range(3):
        with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
            if not run:
                ws.sql(TOPICS + VIEWS + LISTS)
            for _ in range(4):
                for _ in range(chance.randrange(1, 20)):
                    ws.append(step(network, chance))
                assert ws.run(tick_rows=chance.choice([None, 4])).stopped == {}
                network.holds(ws)
            if run == 2:
                assert ws.verify().differences == ()
                ws.view("timeline").rebuild(verify=False)
                ws.run()
                network.holds(ws)


FOLLOWERS, FEW = 20_000, 10


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """An author (1) with many followers, one (2) with few of these, and as many accounts that follow a third (3)."""
    with hw.open(tmp_path_factory.mktemp("large") / "ws", durability="os", spark=spark) as ws:
        ws.sql(TOPICS + VIEWS)
        readers = list(range(10, 10 + 2 * FOLLOWERS))
        follows = [(r, 1) for r in readers[:FOLLOWERS]] + [(r, 3) for r in readers[FOLLOWERS:]]
        follows += [(r, 2) for r in readers[:FEW]]
        accounts = [1, 2, 3, *readers]
        ws.append(
            {
                "accounts": pa.table({"id": accounts, "name": [f"account {i}" for i in accounts]}),
                "follows": pa.table({"follower": [f for f, _ in follows], "author": [a for _, a in follows]}),
                "posts": [
                    {"id": n, "author": 1 + n % 3, "text": f"post {n}", "at": at(n)}
                    for n in range(3 * PER_AUTHOR)
                ],
                "online": [{"account": reader} for reader in readers[: 2 * FEW]],
            }
        )
        ws.run()
        yield ws


@dataclass(frozen=True)
class Cost:
    """The rows by which the views changed in a tick, and by which all that is kept grew or shrank."""

    timeline: int
    home: int
    kept: int


def cost(ws: hw.Workspace) -> Cost:
    """Run what was appended, as one tick."""
    store = inspect_workspace(ws).store
    before = store.latest()
    assert ws.run().ticks == 1
    after = store.latest()
    assert before is not None
    assert after is not None
    rows = [
        {name: sum(ref.rows for ref in refs) for name, refs in manifest.arrangements.items()}
        for manifest in (before, after)
    ]
    changes = [after.views[view].change for view in ("timeline", "home")]
    timeline, home = (change.rows if change else 0 for change in changes)
    return Cost(timeline, home, sum(abs(rows[1][name] - rows[0][name]) for name in rows[0]))


def test_a_post_costs_its_authors_followers_and_nobody_elses(large: hw.Workspace) -> None:
    large.topic("posts").append([{"id": 100, "author": 1, "text": "to all", "at": at(100)}])
    found = cost(large)
    assert found.timeline == 2 * FOLLOWERS  # the post that comes, and the one that goes
    assert found.home <= 2 * 2 * FEW
    assert found.kept <= 5 * FOLLOWERS  # the two, in the order of each reader and in the timeline

    for text in ("to few", "edited", None):
        post = {"id": 101, "author": 2, "text": text, "at": at(101)}
        large.topic("posts").append([post] if text else [{"id": 101, "_op": "delete"}])
        found = cost(large)
        assert found.timeline == 2 * FEW
        assert found.home <= 2 * FEW
        assert found.kept <= 20 * FEW


def test_who_follows_an_author_with_many_followers_costs_one_timeline(large: hw.Workspace) -> None:
    one = {"follower": 10 + FOLLOWERS, "author": 1}
    large.topic("follows").append([one])
    followed = cost(large)
    large.topic("follows").delete([one])
    for found in (followed, cost(large)):
        assert 0 < found.timeline <= 2 * PER_AUTHOR
        assert found.home == 0
        assert found.kept <= 10 * PER_AUTHOR


def test_who_comes_online_costs_what_they_follow(large: hw.Workspace) -> None:
    reader = {"account": 10 + FOLLOWERS}
    large.topic("online").append([reader])
    came = cost(large)
    large.topic("online").delete([reader])
    for found in (came, cost(large)):
        assert found.timeline == 0
        assert found.home == PER_AUTHOR
        assert found.kept <= 10 * PER_AUTHOR
