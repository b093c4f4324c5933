"""Parts of a backlog: how much a collection that is behind reads at once, and when an error over such a part counts.

The contents of a view after a part of its backlog do not belong to any tick: they are not visible, and batch never runs
over these rows alone. So if an expression fails there, such as `100 / count(*)` where no row of the part qualifies, or
a sum that overflows before the remaining rows have been read, that does not mean that the view fails. Such a part is
read together with as many rows again, up to the whole backlog, whose state is that of a tick: an error there is the
view's. That takes memory for the rows of the longest range on which the view fails, and twice the work; stepping
without evaluating would require a second implementation of every operator. An expression that fails on a single row
fails whatever follows, and counts at once, so that one bad row does not cause the whole backlog to be read at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.core.errors import ArithmeticOverflowError, EvaluationError, HeadwaterError
from headwater.engine.collections.collections import Collection, ViewCollection
from headwater.engine.dataflow.dataflow_stages import source_change
from headwater.engine.dataflow.executor import Rows, size
from headwater.engine.dataflow.linear import renamed
from headwater.engine.tick.tick_budget import TICK_ROWS
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta

BACKFILL_ROWS = 500_000
"""Number of rows that a view that is behind reads per tick while live views wait for the tick: enough for throughput, few
enough not to delay the others."""
PASSING = (EvaluationError, ArithmeticOverflowError)
"""Errors that may disappear with more rows."""
Changes = Mapping[str, Rows]


def part_rows(rows_max: int, *, is_waited_for: bool) -> int:
    """Return how many rows a view that is behind may read in a tick of at most `rows_max` rows. `is_waited_for`: whether
    live views wait for the tick; otherwise the part is as much larger as the tick may be larger than usual."""
    return min(rows_max, BACKFILL_ROWS * (1 if is_waited_for else max(1, rows_max // TICK_ROWS)))


def is_passing(unit: Collection, changes: Changes, error: HeadwaterError) -> bool:
    """Whether an error over a part of a backlog may disappear with more of the backlog."""
    if not isinstance(unit, ViewCollection):
        return False
    return unit.diverts or isinstance(error, ArithmeticOverflowError) or not _fails_on_a_row(unit, changes)


def is_early(unit: Collection, sequence: int) -> bool:
    """Whether a view that would become live at a log commit may become live later, because it was created over records
    that come after that commit."""
    return isinstance(unit, ViewCollection) and sequence < unit.incarnation


def more_rows(rows: int, changes: Changes) -> int:
    """Return how many rows to read after a part of `rows` rows, with these changes, has failed."""
    return 2 * max([rows, *map(size, changes.values())])


def _fails_on_a_row(unit: ViewCollection, changes: Changes) -> bool:
    """Whether an expression fails on a single row of a topic, before it is combined with other rows."""
    made: dict[int, Delta] = {}
    try:
        for node, operator in unit.pipeline.nodes:
            if isinstance(node, g.SourceNode):
                change = changes.get(node.name)
                made[id(node)] = source_change(node, change if isinstance(change, Delta) else None)
            elif isinstance(node, g.Map | g.Union) and all(id(below) in made for below in node.inputs):
                output, _ = operator.step([made[id(below)] for below in node.inputs], ())
                made[id(node)] = output.renamed(renamed(output.rows, node.schema))
    except EvaluationError:
        return True
    return False
