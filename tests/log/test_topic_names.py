"""Names of topics ignore case, wherever a user writes them."""

import pytest

import headwater as hw
from tests.raising import raises


@pytest.fixture
def clicks(ws: hw.Workspace) -> hw.Workspace:
    ws.sql("CREATE TOPIC Clicks (n BIGINT)")
    return ws


def test_a_handle_has_the_declared_name(clicks: hw.Workspace) -> None:
    assert clicks.topic("CLICKS").name == "Clicks"
    assert clicks.topic("clicks", "n BIGINT").name == "Clicks"
    assert [topic.name for topic in clicks.topics()] == ["Clicks"]


def test_create_beside_it_is_refused_and_says_what_is_there(clicks: hw.Workspace) -> None:
    for text in ("CREATE TOPIC clicks (n BIGINT)", "CREATE TOPIC clicks (other STRING)"):
        with raises(hw.TopicExistsError, topic="Clicks") as caught:
            clicks.sql(text)
        assert caught.value.hint
    clicks.sql("CREATE TOPIC IF NOT EXISTS clicks (other STRING)")
    assert clicks.topic("clicks").schema.names == ["n"]


def test_or_replace_may_spell_it_anew(clicks: hw.Workspace) -> None:
    clicks.sql("CREATE OR REPLACE TOPIC clicks (other STRING)")
    assert [(topic.name, topic.schema.names) for topic in clicks.topics()] == [("clicks", ["other"])]


def test_statements_find_it_in_any_case(clicks: hw.Workspace) -> None:
    clicks.sql("ALTER TOPIC CLICKS ADD COLUMN more STRING")
    described = clicks.sql("DESCRIBE clicks")
    assert described is not None
    assert described.column("column").to_pylist() == ["n", "more"]
    explained = clicks.sql("EXPLAIN cLICKS")
    assert explained is not None
    assert explained.column("value")[0].as_py() == "Clicks"
    clicks.topic("clicks").cursor("mailer")
    with raises(hw.UsageError, cursors=["mailer"]):
        clicks.sql("DROP TOPIC clicks")
    clicks.sql("DROP TOPIC clicks CASCADE; DROP TOPIC IF EXISTS CLICKS")
    assert clicks.topics() == []


def test_rows_reach_it_in_any_case(clicks: hw.Workspace) -> None:
    receipt = clicks.append({"clicks": [{"n": 1}]}, expect={"clicks": 0})
    assert receipt.positions == {"Clicks": {0: (0, 1)}}
    with clicks.transaction() as tx:
        tx.append("CLICKS", [{"n": 2}])
        tx.append("clicks", [{"n": 3}])
    assert [n for batch in clicks.topic("cLiCks").read() for n in batch.column("n").to_pylist()] == [1, 2, 3]
    with clicks.topic("clicks").group("billing") as member:
        rows = [n for batch in member.read(follow=False) for n in batch.column("n").to_pylist()]
        member.commit()
    assert rows == [1, 2, 3]
    assert [(cursor.topic, cursor.name) for cursor in clicks.cursors()] == [("Clicks", "billing")]
    assert clicks.verify("clicks").ok


def test_a_topic_cannot_take_the_name_of_a_view(ws: hw.Workspace) -> None:
    ws.log.put_entry("view", "revenue", {}, expect=None)
    for make in (lambda: ws.sql("CREATE TOPIC Revenue (n BIGINT)"), lambda: ws.topic("revenue", "n BIGINT")):
        with raises(hw.TopicExistsError, kind="view", existing="revenue"):
            make()
