"""Segments: files that hold the records of a partition, active (Arrow frames) or sealed (Parquet).

Called by log.embedded.base, log.embedded.maintenance, log.embedded.rewrite_segments, log.embedded.verification; imports
catalog, core, log.embedded.journal, log.watermarks.

In import order, bottom to top:

    compaction       selection of the superseded records of a keyed partition
    sealed_segments  sealed segments as Parquet files
    segment_reader   reading a partition across active and sealed segments, with metadata columns
"""
