"""The parts of the runtime that need Spark, made together at first need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.log.protocol import Log
from headwater.runtime.catalog import Catalog
from headwater.runtime.expressions import Evaluator
from headwater.runtime.functions.registry import Functions
from headwater.runtime.placement import Placement
from headwater.runtime.planning.planner import Planner
from headwater.runtime.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Tools:
    """A session, and what plans and evaluates in it, for one workspace."""

    def __init__(self, log: Log, given: SparkSession | None, functions: Functions) -> None:
        self.spark = session(given)
        self.functions = functions
        self.planner = Planner(self.spark, functions)
        self.evaluator = Evaluator(self.planner.catalyst)
        self.catalog = Catalog(log, self.planner, self.evaluator, Placement(self.spark))
