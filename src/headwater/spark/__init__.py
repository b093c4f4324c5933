"""Spark: the local Spark session, access to Catalyst plans, and translation of foreign exceptions.

Called by cli, engine, lineage, plan, serving, views; imports core.

In import order, bottom to top:

    catalyst       Catalyst plans and expressions, read and built from Python
    java           the Java installation that Spark starts with
    spark_errors   exceptions of Spark, the JVM, Arrow, DuckDB and sqlglot translated to Headwater errors
    spark_session  one Spark session per process, started on first use
"""
