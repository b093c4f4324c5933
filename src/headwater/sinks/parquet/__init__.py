"""Parquet sink: a view as Parquet files in a folder.

Called by sinks.registry; imports core, sinks.base.

It holds:

    target  the target
"""
