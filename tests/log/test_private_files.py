"""No file of a workspace has a private value in plain: not the journal, nor segments of any kind, nor what is staged."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.settings import LogSettings

DECLARED = "user BIGINT NOT NULL, email STRING, note STRING"


def files_with(folder: Path, text: str) -> list[str]:
    return [p.name for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


@pytest.mark.parametrize("rows", [3, 300])
def test_what_is_appended_is_encrypted_wherever_it_lies(tmp_path: Path, rows: int) -> None:
    """Few rows travel in the journal, many are staged in files first; both are sealed later."""
    settings = LogSettings(durability="os", staging_bytes_max=5_000, maintenance_every_ms=0)
    with hw.open(tmp_path / "ws", settings=settings) as ws:
        people = ws.topic("people", DECLARED, private={"email": "user"}, partitions=2, partition_by="user")
        with ws.transaction() as tx:
            for n in range(rows):
                tx.append("people", [{"user": n % 7, "email": f"secret-{n}", "note": "plain-note"}])
            if rows > 3:
                assert files_with(tmp_path / "ws" / "staging", "plain-note") != []
            assert files_with(tmp_path, "secret-") == []
        assert files_with(tmp_path / "ws", "plain-note") != []
        assert files_with(tmp_path, "secret-") == []
        ws.maintain()
        assert files_with(tmp_path, "secret-") == []
        found = sorted(e for batch in people.read(columns=["email"]) for e in batch.column(0).to_pylist())
        assert found == sorted(f"secret-{n}" for n in range(rows))
        assert ws.verify().ok


def test_a_forked_child_reads_and_writes_by_the_same_keys(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        people = ws.topic("people", DECLARED, private={"email": "user"})
        people.append([{"user": 1, "email": "a", "note": "x"}])
        child = os.fork()
        if not child:
            code = 1
            try:
                people.append([{"user": n, "email": f"child-{n}", "note": "x"} for n in (1, 2)])
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        ws.forget(2)
        found = [e for batch in people.read(columns=["email"]) for e in batch.column(0).to_pylist()]
        assert found == ["a", "child-1", None]


def test_an_open_process_sees_a_forgetting_of_another_at_once(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as one, hw.open(tmp_path / "ws") as two:
        one.topic("people", DECLARED, private={"email": "user"}).append(
            [{"user": 1, "email": "a", "note": "x"}]
        )
        assert next(two.topic("people").read()).column("email").to_pylist() == ["a"]
        one.forget(1)
        assert next(two.topic("people").read()).column("email").to_pylist() == [None]
        two.topic("people").append([{"user": 1, "email": "b", "note": "x"}])
        read = [e for batch in one.topic("people").read() for e in batch.column("email").to_pylist()]
        assert read == [None, "b"]


def test_rows_that_are_written_while_their_subject_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the key and its use it is destroyed: the row is as one that was written just before, and says so."""
    with hw.open(tmp_path / "ws", durability="os") as ws:
        people = ws.topic("people", DECLARED, private={"email": "user"})
        people.append([{"user": 1, "email": "a", "note": "x"}])
        keys, found = ws.log.keys, ws.log.keys.of

        def of(subjects: Sequence[str]) -> list[int]:
            numbers = found(subjects)
            with monkeypatch.context() as patch:
                patch.setattr(keys, "of", found)
                with hw.open(tmp_path / "ws", durability="os") as other:
                    other.forget(1)
            return numbers

        monkeypatch.setattr(keys, "of", of)
        people.append([{"user": 1, "email": "b", "note": "y"}, {"user": 2, "email": "c", "note": "z"}])
        monkeypatch.setattr(keys, "of", found)
        people.append([{"user": 1, "email": "d", "note": "y"}, {"user": 1, "email": None, "note": "y"}])
        columns = ["user", "email", "_forgotten"]
        read = [tuple(row.values()) for batch in people.read(columns=columns) for row in batch.to_pylist()]
        assert read == [(1, None, True), (1, None, True), (2, "c", False), (1, "d", False), (1, None, False)]


def test_many_write_while_a_subject_is_forgotten_again_and_again(tmp_path: Path) -> None:
    """What was there before a forgetting began is gone, what was written after it ended is there, and nothing fails."""
    with hw.open(tmp_path / "ws", durability="os") as ws:
        people = ws.topic("people", DECLARED, private={"email": "user"})
        people.append([{"user": 1, "email": "first", "note": "0"}])
        written: dict[str, tuple[float, float]] = {}
        forgotten: list[tuple[float, float]] = []
        failed: list[Exception] = []
        stop = threading.Event()

        def write(writer: int) -> None:
            number = 0
            try:
                while not stop.is_set():
                    name, began = f"{writer}-{number}", time.monotonic()
                    people.append([{"user": 1, "email": name, "note": name}])
                    written[name] = (began, time.monotonic())
                    number += 1
            except Exception as error:  # noqa: BLE001  told below
                failed.append(error)

        writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        for each in writers:
            each.start()
        for _ in range(8):
            count = len(written)
            while len(written) == count and not failed:  # something of theirs was kept since
                time.sleep(0.02)
            began = time.monotonic()
            ws.forget(1)
            forgotten.append((began, time.monotonic()))
        stop.set()
        for each in writers:
            each.join()
        assert not failed
        columns = ["email", "note", "_forgotten"]
        rows = [row for batch in people.read(columns=columns) for row in batch.to_pylist()]
        assert len(rows) == len(written) + 1
        for row in rows[1:]:
            began, ended = written[row["note"]]
            assert row["email"] == (None if row["_forgotten"] else row["note"])
            if any(ended < at for at, _ in forgotten):
                assert row["_forgotten"], "it was there before"
            if all(at < began for _, at in forgotten):
                assert not row["_forgotten"], "it came after the last"
