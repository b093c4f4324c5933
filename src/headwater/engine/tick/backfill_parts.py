"""Parts of a backlog: what a unit that is behind takes in at once, and when an error over one of them counts.

What a view holds after a part of its backlog is of no tick: nobody sees it, and batch never runs over these rows alone. So an
expression that fails there, such as `100 / count(*)` where no row of the part qualifies, or a sum that does not fit before the
rest has come, says nothing of the view. Such a part is taken together with as many rows again, up to the whole backlog, whose
state is that of a tick: an error there is the view's. That takes memory for the rows of the longest stretch on which the view
fails, and twice the work; to step without evaluating would take a second form of every operator. An expression that fails on
a row by itself fails whatever follows, and counts at once, so that one bad row does not have the backlog read as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.core.errors import ArithmeticOverflowError, EvaluationError, HeadwaterError
from headwater.engine.collections.collections import Collection, ViewCollection
from headwater.engine.dataflow.dataflow_stages import source_change
from headwater.engine.dataflow.executor import Rows, size
from headwater.engine.dataflow.linear import renamed
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta

BACKFILL_ROWS = 500_000
"""Rows that a view which is behind takes per tick: enough to be fast, few enough not to hold up the others."""
PASSING = (EvaluationError, ArithmeticOverflowError)
"""Errors that more rows may put right."""
Changes = Mapping[str, Rows]


def is_passing(unit: Collection, changes: Changes, error: HeadwaterError) -> bool:
    """Whether an error over a part of a backlog may be gone with more of it."""
    if not isinstance(unit, ViewCollection):
        return False
    return unit.diverts or isinstance(error, ArithmeticOverflowError) or not _fails_on_a_row(unit, changes)


def is_early(unit: Collection, sequence: int) -> bool:
    """Whether a view that is to join at a commit of the log may do so later: more of the rows that it was created over
    come after it."""
    return isinstance(unit, ViewCollection) and sequence < unit.incarnation


def more_rows(rows: int, changes: Changes) -> int:
    """How many rows to take after a part of so many has failed, which has had these changes."""
    return 2 * max([rows, *map(size, changes.values())])


def _fails_on_a_row(unit: ViewCollection, changes: Changes) -> bool:
    """Whether an expression fails on a row of a topic that nothing was put together with yet."""
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
