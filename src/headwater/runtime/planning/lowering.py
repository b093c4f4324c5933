"""Reads Spark's optimized plan off as operators: one method per kind of plan node.

Each method gives the operator and the plan attributes that its columns stand for, by which expressions above find their
columns. Where an operator needs its keys as columns, they are computed below it and dropped above it.
"""

from __future__ import annotations

from headwater.runtime.planning.aggregates import AggregateReader
from headwater.runtime.planning.functions import FunctionReader
from headwater.runtime.planning.joins import JoinReader
from headwater.runtime.planning.pattern_reader import PatternReader
from headwater.runtime.planning.sources import LinearReader
from headwater.runtime.planning.spans import SpanReader
from headwater.runtime.planning.windows import WindowReader


class Lowering(
    SpanReader, FunctionReader, WindowReader, LinearReader, AggregateReader, JoinReader, PatternReader
):
    """Reads every kind of node that has an incremental form."""
