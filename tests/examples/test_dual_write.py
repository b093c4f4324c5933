"""The example of two writes runs against real servers, and its verdict is its exit status."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from tests.postgres import postgres_server as postgres_server
from tests.postgres import postgres_url as postgres_url
from tests.redis import redis_server as redis_server
from tests.redis import redis_url as redis_url
from tests.repo.tree import ROOT

EXAMPLE = [sys.executable, str(ROOT / "examples" / "dual_write.py")]


@pytest.mark.slow
def test_two_writes_go_wrong_and_one_does_not(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    given = ["--postgres", postgres_url, "--redis", redis_url, "--folder", str(tmp_path / "ws")]
    done = subprocess.run([*EXAMPLE, *given], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for way, race, crash in (
        ("naive", "12.00 11.00 DIFFERS", "15.00 10.00 DIFFERS"),
        ("capture", "12.00 12.00 same", "15.00 15.00 same"),
        ("outbox", "12.00 12.00 same", "10.00 10.00 same"),
    ):
        assert f"{way} two clients at once {race}" in lines
        assert lines.count(f"{way} killed in between {crash}") == 2, "at once, and in the end"
    assert "verify: clean" in done.stdout
    assert "as it should be" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    with psycopg.connect(postgres_url) as session:
        for left in (
            "pg_namespace WHERE nspname = 'dual_write'",
            "pg_replication_slots WHERE database = current_database()",
            "pg_publication",
        ):
            assert session.execute(f"SELECT * FROM {left}").fetchall() == []
    with redis.Redis.from_url(redis_url) as cache:
        assert cache.keys("dual_write:*") == []


def test_without_servers_it_says_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSTGRES_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(EXAMPLE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "give --postgres and --redis" in done.stderr
