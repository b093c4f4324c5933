"""The project that `headwater init --project` creates: a pipeline in SQL, its configuration, and a README.

The layout is that of the demo's shop: statements in `pipeline.sql`, secrets in `.env` (never in the statements), the
workspace in a folder next to them.
"""

from __future__ import annotations

from pathlib import Path

from headwater.core.errors import UsageError

WORKSPACE = "workspace"

_PIPELINE = """\
-- The pipeline: topics, views and sinks.
-- `headwater run pipeline.sql` runs it; a second time an identical CREATE does nothing, and a different one fails.

-- Topics. Rows are appended by Python or over HTTP, or captured from a database.
CREATE TOPIC clicks (
  customer_id BIGINT, page STRING, at TIMESTAMP,
  WATERMARK FOR at AS at - INTERVAL '10 seconds'
);

-- Change capture from Postgres: a topic for each table. `headwater doctor "$SHOP_URL"` checks the database.
-- CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders, public.customers');

-- Views.
CREATE MATERIALIZED VIEW clicks_per_minute AS
  SELECT window(at, '1 minute').start AS minute, page, count(*) AS clicks
  FROM clicks GROUP BY window(at, '1 minute'), page;

-- CREATE MATERIALIZED VIEW revenue AS
--   SELECT c.country, sum(o.amount) AS revenue, count(*) AS orders
--   FROM orders o JOIN customers c ON o.customer_id = c.id GROUP BY c.country;

-- Sinks.
-- CREATE SINK revenue_cache FROM revenue INTO REDIS WITH (url = env('CACHE_URL'), key = 'country');
"""

_ENVIRONMENT = """\
# Copy this file to .env, fill it in, and load it in a shell: set -a; . ./.env; set +a
HEADWATER_WORKSPACE=workspace
# SHOP_URL=postgresql://user:password@localhost/shop
# CACHE_URL=redis://localhost:6379/0
"""

_IGNORED = """\
.env
workspace/
"""

_README = """\
# {name}

| file | content |
| --- | --- |
| `pipeline.sql` | topics, sources, views and sinks |
| `.env.example` | the environment variables of the pipeline; copy it to `.env` |
| `workspace/` | the log and the state of the views; not for version control |

```sh
cp .env.example .env
set -a; . ./.env; set +a
headwater run pipeline.sql --console        # runs the engine; prints the address of the console
```

In another terminal, with the same environment:

```sh
echo '{{"customer_id": 1, "page": "/", "at": "2026-01-31T12:00:00Z"}}' | headwater append clicks -
headwater sql "SELECT * FROM clicks_per_minute"
headwater status                            # health, lag and sizes
headwater verify                            # recomputes every view in batch, compares every sink
```

`headwater demo` runs a whole shop of this kind.
"""


def make_project(folder: Path) -> list[str]:
    """Write the files of a project into a folder, and return their names. No existing file is replaced."""
    files = {
        "pipeline.sql": _PIPELINE,
        ".env.example": _ENVIRONMENT,
        ".gitignore": _IGNORED,
        "README.md": _README.format(name=folder.resolve().name),
    }
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise UsageError(
            f"{folder} already has {', '.join(there)}",
            hint="name a new folder: headwater init --project PATH",
            path=str(folder),
            files=there,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(files)
