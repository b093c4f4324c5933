"""The servers that sinks are tested against."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.postgres import PostgresServer, postgres_server
from tests.redis import redis_server, redis_url

__all__ = ["postgres_server", "redis_server", "redis_url"]

_EMPTY = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid();
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', name);
  END LOOP;
END $$;
CREATE SCHEMA public;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""


@pytest.fixture(scope="session")
def _database(postgres_server: PostgresServer) -> str:
    return postgres_server.make_database()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, _database: str) -> Iterator[str]:
    """The worker's database, empty: to make one for every test takes ten times as long."""
    yield _database
    if postgres_server._process is None:
        postgres_server.start()
    with psycopg.connect(_database, autocommit=True) as session:
        session.execute(_EMPTY)
