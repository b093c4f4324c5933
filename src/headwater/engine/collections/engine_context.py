"""The parts of the runtime that need Spark, created together at first need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.engine.collections.workload import Catalog
from headwater.engine.dataflow.driver_executor import DriverExecutor
from headwater.engine.dataflow.executor import Executor
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.placement import Placement
from headwater.log.protocol import Log
from headwater.plan.planner import Planner
from headwater.spark.spark_session import session
from headwater.udf.udf_registry import Functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class EngineContext:
    """The Spark session of a workspace, with the planner, evaluator, catalog and executor that use it."""

    def __init__(self, log: Log, given: SparkSession | None, functions: Functions) -> None:
        self.spark = session(given)
        self.functions = functions
        self.planner = Planner(self.spark, functions)
        self.evaluator = Evaluator(self.planner.catalyst)
        self.catalog = Catalog(log, self.planner, self.evaluator)
        self.executor: Executor = DriverExecutor(Placement(self.spark))
        """The executor that runs the stages of ticks."""
