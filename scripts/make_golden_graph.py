"""Makes the golden workspace of operator graphs: `.venv/bin/python scripts/make_golden_graph.py NUMBER`.

It has a view for each kind of node, and every view goes on from a base, because the first records of its topics were removed.
A golden workspace that is committed is never made again: a new kind of node gets a new workspace beside it, with the next number.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from make_golden import Elsewhere, finish  # noqa: E402
from make_golden_state import SETTINGS, TICKS_KEPT, alike  # noqa: E402

import headwater as hw  # noqa: E402
from headwater.core.clock import ManualClock, from_us  # noqa: E402
from headwater.engine.tick import tick_engine  # noqa: E402
from headwater.log.embedded import EmbeddedLog  # noqa: E402
from tests.golden.contents import view_rows  # noqa: E402
from tests.golden.graph_views import VIEWS, append, declare_views  # noqa: E402
from tests.shared_spark import make_session  # noqa: E402


def make(ws: hw.Workspace, clock: ManualClock) -> dict[str, list[str]]:
    """Make ticks, let retention remove the records under them, and make one more; return what the views hold."""
    declare_views(ws)
    for step in range(4):
        append(ws, from_us(clock.now_us()), step)
        if stopped := ws.run().stopped:
            sys.exit(f"views have stopped: {stopped}")
        clock.advance("10 minutes")
    clock.advance("2 hours")
    if not ws.maintain().rows_removed:
        sys.exit("retention has removed nothing")
    append(ws, from_us(clock.now_us()), 4)
    ws.run()
    return {name: view_rows(ws, name) for name in VIEWS}


def main() -> None:
    """Make it in a folder that is not there yet."""
    home = ROOT / "tests" / "golden" / f"graph-{int(sys.argv[1])}"
    folder = home / "workspace"
    folder.mkdir(parents=True)
    spark, clock = make_session(), ManualClock()
    with alike(), mock.patch.object(tick_engine, "COLLECT_EVERY_TICKS", 1):
        log = EmbeddedLog.open(folder, settings=SETTINGS, clock=clock, storage=Elsewhere(folder))
        with hw.Workspace(log, clock, folder, spark, TICKS_KEPT) as ws:
            held = make(ws, clock)
            if not (verified := ws.verify()).ok:
                sys.exit(f"the workspace just made fails its verification: {verified.differences}")
    spark.stop()
    finish(home, {"made_at_us": clock.now_us(), "views": held})


if __name__ == "__main__":
    main()
