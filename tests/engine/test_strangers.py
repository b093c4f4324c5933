"""Strange files in every folder of a workspace with views, sinks, events, queues and keys, and in the folders of its sinks."""

from pathlib import Path
from typing import Any

import headwater as hw
from headwater.core.settings import LogSettings
from headwater.sources.log_lookup import Lookups
from headwater.testing import inspect_workspace
from tests.strangers import Strangers

SETTINGS = LogSettings(maintenance_every_ms=0, checkpoint_records=20)


def test_files_of_others_stay_and_stand_in_nobodys_way(tmp_path: Path, spark: Any) -> None:
    root, strangers = tmp_path / "ws", Strangers(tmp_path / "outside")
    sinks = [tmp_path / "table", tmp_path / "found"]
    workspace = [root, Path(f"{root}.keys")]
    with hw.open(root, settings=SETTINGS, spark=spark) as ws:
        ws.sql(f"""
            CREATE TOPIC orders (id BIGINT, who STRING, note STRING, PRIMARY KEY (id)) WITH (cleanup = 'compact');
            CREATE TOPIC people (who STRING NOT NULL, mail STRING PRIVATE BY (who));
            CREATE TOPIC gone (n BIGINT);
            CREATE MATERIALIZED VIEW per AS SELECT who, count(*) AS n, max(note) AS note FROM orders GROUP BY who;
            CREATE SINK kept FROM per INTO PARQUET WITH (path = '{sinks[0]}', key = 'who');
            CREATE SINK found FROM per INTO SEARCH WITH (path = '{sinks[1]}', text = 'note', key = 'who');
        """)
        queue = ws.queue("work", topic="orders")

        def step(n: int) -> None:
            ws.topic("orders").append([{"id": i, "who": f"w{i % 3}", "note": f"note {n}"} for i in range(5)])
            ws.topic("people").append([{"who": f"w{n}", "mail": f"m{n}@example.org"}])
            ws.topic("gone").append([{"n": n}])
            ws.run()
            assert ws.maintain().failed == ()
            queue.ack(queue.receive(1))
            assert sum(b.num_rows for b in Lookups(ws.log, root / "keys").live_keys("orders")) == 5

        step(0)
        assert strangers.fill(*workspace) > 15
        strangers.fill(
            *sinks, copies=False
        )  # a copy of a table beside it is refused, because readers would take it for rows
        step(1)
        ws.view("per").rebuild()
        ws.run()
        for name in ("kept", "found"):
            ws.sink(name).rebuild()
            ws.sink(name).drop_old()
        strangers.fill(*workspace)
        ws.forget("w1")
        ws.sql("DROP TOPIC gone")
        inspect_workspace(ws).drop_state()
        ws.topic("orders").append([{"id": 9, "who": "w9", "note": "last"}])
        ws.run()
        assert ws.maintain().failed == ()
        assert ws.log.faults.current() == []
        assert ws.verify().ok
        rows = ws.query("SELECT who, n FROM per ORDER BY who").to_pylist()
        assert [row["n"] for row in rows] == [2, 2, 1, 1]
    with hw.open(root, settings=SETTINGS, spark=spark) as ws:
        assert ws.verify().ok
        assert ws.query("SELECT who, n FROM per ORDER BY who").to_pylist() == rows
    assert strangers.gone() == []
