"""Spark data source: topics and views in any PySpark program, by `format("headwater")`, batch and streaming.

Called by Spark, through `pyspark_headwater`; imports catalog, core, log, operators, state.

In import order, bottom to top:

    offsets       offsets of a streaming query, as its checkpoint stores them
    options       options of a read or a write
    conversion    schemas and batches converted between Headwater and Spark
    topic_reader  reading a topic, by partitions
    topic_writer  writing to a topic, in one commit
    view_reader   reading a view: rows at a tick, or changes
    topic_stream  a topic as a streaming source
    datasource    `HeadwaterDataSource`, which Spark loads
"""
