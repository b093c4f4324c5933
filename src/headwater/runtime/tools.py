"""The parts of the runtime that need Spark, made together at first need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.log.protocol import Log
from headwater.runtime.catalog import Catalog
from headwater.runtime.expressions import Evaluator
from headwater.runtime.planning.planner import Planner
from headwater.runtime.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Tools:
    """A session, and what plans and evaluates in it, for one workspace."""

    def __init__(self, log: Log, given: SparkSession | None) -> None:
        self.spark = session(given)
        self.planner = Planner(self.spark)
        self.evaluator = Evaluator(self.planner.catalyst)
        self.catalog = Catalog(log, self.planner, self.evaluator)
