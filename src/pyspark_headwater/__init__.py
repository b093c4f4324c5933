"""How Spark finds `format("headwater")` by itself: it looks for packages called `pyspark_*` and their `DefaultSource`."""

from headwater.runtime.source import HeadwaterDataSource as DefaultSource

__all__ = ["DefaultSource"]
