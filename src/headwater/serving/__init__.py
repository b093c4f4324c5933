"""Serving: queries at a tick, subscriptions to changes, and searches in topics.

Reads committed ticks. DuckDB answers queries for which its answer equals Spark's; Spark answers all others.

Called by cli, connectors, deletion, lineage, verify, views, web, workspace; imports catalog, core, engine, log, operators,
plan, spark, sql, state, udf.

In import order, bottom to top:

    follow           iteration over committed ticks: a snapshot, then changes
    name_hints       suggestions for unknown names
    spark_batch      SELECT by Spark in batch over the log, for `verify` and older ticks
    create_topic_as  CREATE TOPIC ... AS SELECT
    find_records     records of a topic found by a condition, without a JVM
    query            SELECT at one tick
    query_sources    sources of a subscription: views, tables and topics
    subscribe        a SELECT maintained in the subscriber's memory
"""
