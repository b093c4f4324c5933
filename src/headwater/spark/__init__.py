"""Spark: the local Spark session, access to Catalyst plans, and errors of the JVM.

Called by cli, engine, lineage, plan, serving, views; imports core.

In import order, bottom to top:

    catalyst       Catalyst plans and expressions seen from Python
    java           the Java installation that Spark starts with
    spark_errors   errors of Spark, the JVM, Arrow, DuckDB and sqlglot as Headwater's
    spark_session  one Spark session per process, started at first need
"""
