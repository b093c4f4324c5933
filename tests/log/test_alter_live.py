"""A topic is altered while producers append and readers follow: nobody stops, nothing is lost."""

import threading
from pathlib import Path

import headwater as hw

CHANGES = (
    "ALTER TOPIC t ADD COLUMN note STRING",
    "ALTER TOPIC t ALTER COLUMN n TYPE BIGINT",
    "ALTER TOPIC t SET (retention = '30 days')",
    "ALTER TOPIC t SET (durability = 'os')",
    "ALTER TOPIC t ADD COLUMN more ARRAY<INT>",
    "ALTER TOPIC t SET (durability = 'group')",
)
ROUNDS = 60


def test_producers_and_readers_go_on(tmp_path: Path) -> None:
    with hw.open(tmp_path / "w") as ws, hw.open(tmp_path / "w") as other:
        ws.topic("t", "who INT, n INT", partitions=2, partition_by="who")
        failures: list[hw.HeadwaterError] = []
        seen: dict[int, list[int]] = {0: [], 1: []}

        def produce(who: int, workspace: hw.Workspace) -> None:
            try:
                for n in range(ROUNDS):
                    workspace.topic("t").append([{"who": who, "n": n}])
            except hw.HeadwaterError as error:
                failures.append(error)

        def follow() -> None:
            try:
                for batch in other.topic("t").read(follow=True, timeout=20):
                    for row in batch.to_pylist():
                        seen[row["who"]].append(row["n"])
                    if sum(map(len, seen.values())) == 2 * ROUNDS:
                        return
            except hw.HeadwaterError as error:
                failures.append(error)

        threads = [
            threading.Thread(target=produce, args=(0, ws)),
            threading.Thread(target=produce, args=(1, other)),
            threading.Thread(target=follow),
        ]
        for thread in threads:
            thread.start()
        for change in CHANGES:
            ws.sql(change)
        for thread in threads:
            thread.join(60)
        assert failures == []
        assert seen == {0: list(range(ROUNDS)), 1: list(range(ROUNDS))}
        table = [row for batch in ws.topic("t").read() for row in batch.to_pylist()]
        assert len(table) == 2 * ROUNDS
        assert all(row["note"] is None and row["more"] is None for row in table)
        ws.topic("t").append([{"who": 0, "n": 2**40, "note": "wide", "more": [1]}])
        assert ws.verify().ok
