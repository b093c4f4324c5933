"""How Spark finds `format("headwater")` by itself: it looks for packages called `pyspark_*` and their `DefaultSource`."""

from headwater.spark_datasource.datasource import HeadwaterDataSource as DefaultSource
from headwater.spark_datasource.datasource import register

__all__ = ["DefaultSource", "register"]
