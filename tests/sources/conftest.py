"""What tests of capture share: a real Postgres."""

from tests.postgres import postgres_server as postgres_server
from tests.postgres import postgres_url as postgres_url
