"""The project that `headwater init --project` creates: a pipeline in SQL, its configuration, and a README.

The layout is that of the demo's shop: statements in `pipeline.sql`, secrets in `.env` (never in the statements), the
workspace in a folder next to them.
"""

from __future__ import annotations

from pathlib import Path

from headwater.core.errors import UsageError

WORKSPACE = "workspace"

_PIPELINE = """\
-- The pipeline: what comes in, what is kept up to date, and who follows it.
-- `headwater run pipeline.sql` runs it; a second time an identical CREATE does nothing, and a different one is refused.

-- What comes in. Rows are appended by Python, over HTTP, or captured from a database.
CREATE TOPIC clicks (
  customer_id BIGINT, page STRING, at TIMESTAMP,
  WATERMARK FOR at AS at - INTERVAL '10 seconds'
);

-- A Postgres of yours: every table a topic. `headwater doctor "$SHOP_URL"` says what it lacks.
-- CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders, public.customers');

-- What is kept up to date.
CREATE MATERIALIZED VIEW clicks_per_minute AS
  SELECT window(at, '1 minute').start AS minute, page, count(*) AS clicks
  FROM clicks GROUP BY window(at, '1 minute'), page;

-- CREATE MATERIALIZED VIEW revenue AS
--   SELECT c.country, sum(o.amount) AS revenue, count(*) AS orders
--   FROM orders o JOIN customers c ON o.customer_id = c.id GROUP BY c.country;

-- Who follows it.
-- CREATE SINK revenue_cache FROM revenue INTO REDIS WITH (url = env('CACHE_URL'), key = 'country');
"""

_ENVIRONMENT = """\
# Copy it to .env, fill it in, and have the shell read it: set -a; . ./.env; set +a
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

| file | what it is |
| --- | --- |
| `pipeline.sql` | topics, sources, views and sinks |
| `.env.example` | what the pipeline has to be told; copy it to `.env` |
| `workspace/` | the log, and the state of the views: data, not for version control |

```sh
cp .env.example .env
set -a; . ./.env; set +a
headwater run pipeline.sql --console        # keeps the views up to date; the console is at the address that it prints
```

In another terminal, with the same environment:

```sh
echo '{{"customer_id": 1, "page": "/", "at": "2026-01-31T12:00:00Z"}}' | headwater append clicks -
headwater sql "SELECT * FROM clicks_per_minute"
headwater status                            # how far everything is
headwater verify                            # compares every view with Spark's own answer, every sink with its view
```

`headwater demo` shows a whole shop of this shape at work.
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
            f"{folder} has {', '.join(there)} already, which would be replaced",
            hint="name a folder that is new: headwater init --project PATH",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(files)
