"""`versions_for`: compaction leaves what others have replaced for so long, and of what is older the latest of each key."""

import headwater as hw
from headwater.core.clock import ManualClock
from tests.raising import raises


def test_compaction_leaves_versions_of_the_declared_span(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql(
        "CREATE TOPIC prices (id BIGINT, price INT, PRIMARY KEY (id)) WITH (cleanup = 'compact', versions_for = '1 hour')"
    )
    prices = ws.topic("prices")
    for price in range(6):
        prices.append([{"id": 1, "price": price}])
        clock.advance("30 minutes")
    ws.maintain()
    kept = [row["price"] for batch in prices.read("earliest") for row in batch.to_pylist()]
    assert kept == [3, 4, 5]  # two of the last hour, and the one that was valid before
    clock.advance("1 day")
    ws.maintain()
    assert [row["price"] for batch in prices.read("earliest") for row in batch.to_pylist()] == [5]


def test_only_a_table_has_versions_to_keep(ws: hw.Workspace) -> None:
    with raises(hw.StatementError, option="versions_for", reason="no-primary-key"):
        ws.sql("CREATE TOPIC clicks (id BIGINT) WITH (versions_for = '1 hour')")


def test_the_span_can_be_altered_and_is_shown(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC prices (id BIGINT, PRIMARY KEY (id))")
    ws.sql("ALTER TOPIC prices SET (versions_for = '2 days')")
    assert "versions_for = '2 days'" in ws.topic("prices").definition.to_sql()
    ws.sql("ALTER TOPIC prices SET (versions_for = NULL)")
    assert ws.topic("prices").definition.versions_for_us is None
