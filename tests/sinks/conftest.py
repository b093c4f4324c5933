"""The servers that sinks are tested against."""

from tests.postgres import postgres_server, postgres_url
from tests.redis import redis_server, redis_url

__all__ = ["postgres_server", "postgres_url", "redis_server", "redis_url"]
