"""Dead letters of sinks: rows that a target refuses are replayed once it takes them, dropped, and in part edited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

import headwater as hw
from headwater.connectors.dead_letters import dead_sinks
from headwater.sinks.postgres.target import PostgresTarget
from headwater.testing import inspect_workspace
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = """
    CREATE TOPIC sales (country STRING, amount BIGINT);
    CREATE MATERIALIZED VIEW revenue AS SELECT country, sum(amount) AS amount FROM sales GROUP BY country;
"""
SALES = [{"country": c, "amount": n} for c, n in (("de", 1), ("fr", 20), ("it", 30), ("es", 2))]


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as made:
        made.sql(DECLARED)
        made.topic("sales").append(SALES)
        yield made


class Table:
    """A follower in Postgres that takes small amounts alone."""

    def __init__(self, ws: hw.Workspace, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(
            "CREATE TABLE few (country TEXT PRIMARY KEY, amount BIGINT CONSTRAINT small CHECK (amount < 10))"
        )
        options = f"url = '{url}', table = 'few', on_error = 'divert'"
        ws.sql(f"CREATE SINK few FROM revenue INTO POSTGRES WITH ({options})")
        ws.run()

    def allow(self, amount: int) -> None:
        self.connection.execute(
            f"ALTER TABLE few DROP CONSTRAINT small; ALTER TABLE few ADD CONSTRAINT small CHECK (amount < {amount})"
        )

    def rows(self) -> list[tuple[Any, ...]]:
        return self.connection.execute("SELECT country, amount FROM few ORDER BY 1").fetchall()


@pytest.fixture
def table(ws: hw.Workspace, postgres_url: str) -> Iterator[Table]:
    made = Table(ws, postgres_url)
    yield made
    made.connection.close()


class Picky:
    """A function that takes small amounts, and remembers the keys of calls."""

    def __init__(self) -> None:
        self.most = 10
        self.held: dict[str, int] = {}
        self.keys: list[str] = []

    def __call__(self, change: pa.Table, key: str) -> None:
        rows = change.to_pylist()
        for number, row in enumerate(rows):
            if row["_op"] != "delete" and row["amount"] >= self.most:
                raise hw.RefusedRowError(f"{row['amount']} is too much", row=number)
        self.keys.append(key)
        for row in rows:
            self.held.pop(row["country"], None)
            if row["_op"] != "delete":
                self.held[row["country"]] = row["amount"]


@pytest.fixture
def picky(ws: hw.Workspace) -> Picky:
    made = Picky()
    ws.sink_function("picky", made)
    options = "function = 'picky', key = 'country', on_error = 'divert'"
    ws.sql(f"CREATE SINK told FROM revenue INTO PYTHON WITH ({options})")
    ws.run()
    return made


def letters(ws: hw.Workspace, state: str = "open") -> dict[str, str]:
    """By country, what the letter of its row is called."""
    found = ws.dead().list(state=state).to_pylist()
    return {row["row"].split('"')[3]: row["letter"] for row in found}


def test_rows_are_replayed_by_name_and_what_is_still_refused_stays(ws: hw.Workspace, table: Table) -> None:
    found = letters(ws)
    assert sorted(found) == ["fr", "it"]
    assert all(name.startswith("few/") and len(name) == 14 for name in found.values())
    one = ws.dead().show(found["fr"])
    assert "small" in one.letter.error
    assert one.row == '{"country":"fr","amount":20}'
    table.allow(25)
    assert ws.dead().replay(found["it"]).ok is False  # and fr was not asked for
    assert table.rows() == [("de", 1), ("es", 2)]
    done = ws.dead().replay(of="few", by="anna")
    assert done.taken == (found["fr"],)
    assert list(done.left) == [found["it"]]
    assert table.rows() == [("de", 1), ("es", 2), ("fr", 20)]
    assert ws.dead().show(found["fr"]).state == "replayed"
    assert letters(ws) == {"it": found["it"]}
    check = ws.verify()
    assert check.ok, check.differences
    assert check.sinks[0].withheld == 1
    ws.topic("sales").append([{"country": "it", "amount": -25}])
    ws.run()
    assert table.rows()[-1] == ("it", 5)
    assert ws.dead().show(found["it"]).state == "resolved"


def test_what_is_dropped_is_not_tried_again_and_counted(ws: hw.Workspace, table: Table) -> None:
    found = letters(ws)
    ws.dead().drop(found["it"], by="anna", reason="not for this table")
    assert list(letters(ws)) == ["fr"]
    table.allow(100)
    assert ws.sink("few").retry() == 1
    assert table.rows() == [("de", 1), ("es", 2), ("fr", 20)]
    (shown,) = ws.sql("SHOW SINKS").to_pylist()  # type: ignore[union-attr]
    assert (shown["withheld"], shown["dropped"]) == (1, 1)
    assert ws.verify().ok
    assert ws.dead().replay(found["it"]).ok  # by its own name it can be taken up again
    assert table.rows()[-1] == ("it", 30)
    assert ws.verify().ok


def test_the_row_of_a_follower_that_is_held_against_its_view_is_not_edited(
    ws: hw.Workspace, table: Table
) -> None:
    name = letters(ws)["fr"]
    with raises(hw.UsageError, view="revenue", reason="target-equals-view"):
        ws.dead().edit(name, {"amount": 5})


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_row_is_taken_once_wherever_the_replay_breaks_off(
    ws: hw.Workspace, table: Table, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    name = letters(ws)["fr"]
    table.allow(25)
    table.connection.execute("CREATE TABLE seen (country TEXT)")
    table.connection.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO seen VALUES (NEW.country); RETURN NEW; END'"
    )
    table.connection.execute(
        "CREATE TRIGGER t AFTER INSERT OR UPDATE ON few FOR EACH ROW EXECUTE FUNCTION note()"
    )
    apply = PostgresTarget.apply

    def breaking(*given: Any) -> None:
        if when == "after":
            apply(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(PostgresTarget, "apply", breaking)
        with pytest.raises(KeyboardInterrupt):
            ws.dead().replay(name)
    done = ws.dead().replay(name)
    assert (done.taken, done.before) == (((name,), ()) if when == "before" else ((), (name,)))
    assert ws.dead().show(name).state == ("replayed" if when == "before" else "resolved")
    assert table.connection.execute("SELECT * FROM seen").fetchall() == [("fr",)]
    ws.run()
    assert ws.verify().ok


def test_a_function_may_be_given_another_row(ws: hw.Workspace, picky: Picky) -> None:
    assert picky.held == {"de": 1, "es": 2}
    name = letters(ws)["fr"]
    with raises(hw.UsageError, sink="told", column="country"):
        ws.dead().edit(name, {"country": "be"})
    ws.dead().edit(name, {"amount": 11}, by="anna")
    assert ws.dead().replay(name).left == {name: "11 is too much"}
    one = ws.dead().edit(name, {"amount": 9}, by="ben")
    assert one.letter.row == '{"country":"fr","amount":20}'  # what was tried instead is not the row
    assert [d.who for d in one.actions if d.action == "edit"] == ["anna", "ben"]
    assert ws.dead().replay(name, by="ben").taken == (name,)
    assert picky.held == {"de": 1, "es": 2, "fr": 9}
    assert ws.dead().replay(name).before == (name,)
    picky.most = 100
    ws.topic("sales").append([{"country": "fr", "amount": 1}])
    ws.run()
    assert picky.held == {"de": 1, "es": 2, "fr": 21}  # the view's row wins when it changes
    assert list(letters(ws)) == ["it"]


@pytest.mark.parametrize("how", ["DROP", "REPLACE"])
def test_what_was_done_about_letters_of_a_sink_does_not_concern_another_of_its_name(
    ws: hw.Workspace, picky: Picky, how: str
) -> None:
    found = letters(ws)
    ws.dead().drop(found["it"])
    ws.dead().edit(found["fr"], {"amount": 9})
    other = Picky()
    ws.sink_function("other", other)
    if how == "DROP":
        ws.sql("DROP SINK told")
    options = "function = 'other', key = 'country', on_error = 'divert'"
    ws.sql(f"CREATE OR REPLACE SINK told FROM revenue INTO PYTHON WITH ({options})")
    ws.run()
    assert other.held == {"de": 1, "es": 2}
    (shown,) = ws.sql("SHOW SINKS").to_pylist()  # type: ignore[union-attr]
    assert (shown["withheld"], shown["dropped"]) == (2, 0)
    assert {row["letter"]: row["state"] for row in ws.dead().list("told").to_pylist()} == {
        found["fr"]: "open",
        found["it"]: "open",
    }
    assert ws.log.partitions("told_errors")[0].end == 4, "it tells of them, too"
    other.most = 25
    assert ws.dead().replay(of="told").taken == (found["fr"],)
    assert other.held["fr"] == 20, "as it is"
    ws.dead().drop(found["it"])
    ws.sql("ALTER SINK told SET (rows = 5)")
    assert letters(ws) == {}, "it is the same sink"


def test_the_process_that_runs_the_sink_tries_it(ws: hw.Workspace, picky: Picky, tmp_path: Path) -> None:
    found = letters(ws)
    runner = ws.start()
    try:
        receipt = ws.topic("sales").append([{"country": "de", "amount": 1}])
        ws.sink("told").wait(after=receipt)
        with hw.open(tmp_path / "w", durability="os") as other:  # which has not the function
            while not inspect_workspace(other).sinks.runs_elsewhere("told"):
                other.log.wait_commit(other.log.sequence(), 50)
            assert letters(other) == found
            assert other.dead().replay(found["fr"]).left == {found["fr"]: "20 is too much"}
            picky.most = 25
            assert other.dead().replay(of="told", by="anna").taken == (found["fr"],)
            assert other.log.entries(dead_sinks.RETRY) == {}
        assert picky.held == {"de": 2, "es": 2, "fr": 20}
        assert ws.dead().show(found["fr"]).actions[-1].who == "anna"
    finally:
        runner.stop()
    assert len(set(picky.keys)) == len(picky.keys)


def test_a_target_that_is_away_is_told_and_nothing_is_lost(
    ws: hw.Workspace, table: Table, tmp_path: Path
) -> None:
    found = letters(ws)
    down = hw.TargetDownError("nobody there")

    def away(*_: Any) -> Any:
        raise down

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(PostgresTarget, "apply", away)
        assert ws.dead().replay(found["fr"]).left == {found["fr"]: "nobody there"}
        broken.setattr(PostgresTarget, "checkpoint", away)
        assert letters(ws) == {}
        dead = ws.dead()
        dead.list()
        assert dead.unreadable == {"few": "nobody there"}
    assert letters(ws) == found
