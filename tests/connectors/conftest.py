from tests.postgres import postgres_server as postgres_server
from tests.postgres import postgres_url as postgres_url
from tests.redis import redis_server as redis_server
from tests.redis import redis_url as redis_url
