"""The views of the golden workspace `graph-1`: each kind of node that an operator graph can have is in one of them.

Every view reads a topic whose first records were removed, so that it goes on from its base: a release that plans one of them
with another fingerprint cannot go on, and says so.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow.compute as pc

import headwater as hw

CREATE = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount BIGINT, note STRING, at TIMESTAMP,
  WATERMARK FOR at AS at - INTERVAL '5 minutes') WITH (retention = '1 hour');
CREATE TOPIC payments (payment BIGINT, customer BIGINT, sum BIGINT, at TIMESTAMP,
  WATERMARK FOR at AS at - INTERVAL '5 minutes') WITH (retention = '1 hour');
CREATE TOPIC prices (item BIGINT, price BIGINT, at TIMESTAMP, PRIMARY KEY (item),
  WATERMARK FOR at AS at - INTERVAL '5 minutes') WITH (retention = '1 hour');
"""
SELECTS = {
    # Map with Filter and Project, over a Source
    "dear": "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 20",
    # Expand below Aggregate
    "rolled_up": "SELECT customer, note, count(*) AS n FROM orders GROUP BY ROLLUP (customer, note)",
    # Generate
    "words": "SELECT o.id, w.word FROM orders o, LATERAL explode(split(o.note, ' ')) AS w(word)",
    # Replicate
    "in_common": "SELECT customer FROM orders INTERSECT ALL SELECT customer FROM payments",
    # Union with a Constant
    "more": "SELECT customer, note FROM orders UNION ALL SELECT * FROM VALUES (100, 'x'), (200, NULL)",
    # Call, of a function of the user's
    "gross": "SELECT id, with_tax(amount) AS gross FROM orders",
    # Aggregate, with functions of every form
    "totals": """SELECT customer, count(*) AS n, sum(amount) AS s, avg(amount) AS a, min(amount) AS lo,
                 max_by(id, amount) AS best, count(DISTINCT note) AS notes, count(*) FILTER (WHERE amount > 20) AS dear,
                 approx_count_distinct(note) AS about FROM orders GROUP BY customer""",
    # Custom, an aggregate of the user's
    "products": "SELECT customer, product_of(amount) AS p FROM orders GROUP BY customer",
    # Join: equal keys, existence, scalar, and a range of times
    "paid": "SELECT o.id, p.payment FROM orders o LEFT JOIN payments p ON o.customer = p.customer",
    "marked": "SELECT id FROM orders WHERE amount > 60 OR customer IN (SELECT customer FROM payments)",
    "share": "SELECT id, amount / (SELECT sum(sum) FROM payments) AS share FROM orders",
    "soon": """SELECT o.id, p.payment FROM orders o JOIN payments p
               ON o.customer = p.customer AND p.at BETWEEN o.at AND o.at + INTERVAL 10 MINUTES""",
    # Rank
    "dearest": "SELECT customer, id, amount FROM orders ORDER BY amount DESC, id LIMIT 3",
    # Regroup, by Spark's expressions and by a row pattern
    "steps": "SELECT id, lag(amount) OVER (PARTITION BY customer ORDER BY at, id) AS before FROM orders",
    "rising": """SELECT * FROM orders MATCH_RECOGNIZE (PARTITION BY customer ORDER BY at, id
                 MEASURES FIRST(a.id) AS since, b.amount AS high PATTERN (a b+) DEFINE b AS b.amount > PREV(amount))""",
    # Slide
    "sliding": """SELECT id, sum(amount) OVER (PARTITION BY customer ORDER BY at
                  RANGE BETWEEN INTERVAL 20 MINUTES PRECEDING AND CURRENT ROW) AS s FROM orders""",
    # Sessions, over rows that can be retracted
    "price_sessions": """SELECT session_window(at, '15 minutes') AS w, count(*) AS n, collect_set(item) AS items
                         FROM prices GROUP BY session_window(at, '15 minutes')""",
    # SessionAggregate, over rows that only come
    "order_sessions": """SELECT session_window(at, '15 minutes') AS w, customer, sum(amount) AS s
                         FROM orders GROUP BY session_window(at, '15 minutes'), customer""",
    # Join with the versions of a table
    "at_the_time": """SELECT o.id, p.price FROM orders o LEFT JOIN prices FOR SYSTEM_TIME AS OF o.at AS p
                      ON o.customer = p.item""",
    "versions": "SELECT item, price, _valid_from FROM prices.versions",
}
WITHOUT_LATE_ROWS = """
CREATE MATERIALIZED VIEW closed WITH (late = 'drop') AS
  SELECT window(at, '10 minutes') AS w, count(*) AS n FROM orders GROUP BY window(at, '10 minutes') EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW on_time WITH (late = 'drop') AS
  SELECT o.id, p.price FROM orders o JOIN prices FOR SYSTEM_TIME AS OF o.at AS p ON o.customer = p.item;
"""
"""Close, and Versions of the records that are not late."""
FOLD, MATCHES = "accounts", "found"
"""The view of a fold, and the standing query: Fold and Percolate."""
VIEWS = (*SELECTS, "closed", "on_time", FOLD, MATCHES)


def declare_functions(ws: hw.Workspace) -> None:
    """Declare the user's code: by every process, before the views that call it run."""
    ws.function("with_tax", lambda net: pc.add(net, pc.divide(net, 5)), returns="BIGINT")
    ws.aggregate(
        "product_of",
        zero=1.0,
        add=lambda state, values: state * (pc.product(values).as_py() or 1),
        merge=lambda a, b: a * b,
        state="DOUBLE",
        returns="DOUBLE",
    )
    ws.fold(
        FOLD,
        topic="payments",
        key="customer",
        zero={"balance": 0, "n": 0},
        step=lambda state, event: {"balance": state["balance"] * 2 + event["sum"], "n": state["n"] + 1},
        returns="balance BIGINT, n BIGINT",
    )


def declare_views(ws: hw.Workspace) -> None:
    """Declare the topics and all views."""
    ws.sql(CREATE)
    declare_functions(ws)
    for name, select in SELECTS.items():
        ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
    ws.sql(WITHOUT_LATE_ROWS)
    ws.sql(f"CREATE STANDING QUERY {MATCHES} ON orders (note, amount)")
    ws.standing(MATCHES).add("about", "note:about AND amount:>10")


def append(ws: hw.Workspace, now: datetime, step: int) -> None:
    """Append what comes before a tick: new rows everywhere, a price that is replaced, and one that is deleted."""

    def row(i: int, **columns: Any) -> dict[str, Any]:
        return {"customer": (step + i) % 3, "at": now + timedelta(minutes=3 * i), **columns}

    orders = [
        row(i, id=10 * step + i, amount=(step * 37 + i * 23) % 90, note=[None, "plain", f"about {step}"][i])
        for i in range(3)
    ]
    payments = [row(i, payment=10 * step + i, sum=5 * step + i) for i in range(2)]
    ws.append({"orders": orders, "payments": payments})
    prices = [{"item": (step + i) % 3, "price": 10 * step + i, "at": now} for i in range(2)]
    ws.topic("prices").append(prices)
    if step % 3 == 2:
        ws.topic("prices").delete([{"item": step % 2, "at": now}])
