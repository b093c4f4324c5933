"""Sinks: committed changes of a view written to external systems, kept in sync with a checkpoint.

A target stores its checkpoint (the tick of its contents) together with its contents, in one step. If the checkpoint does not
determine what comes next, the sink reconciles: it compares the contents of the target with the view and writes the
difference. Sinks read committed ticks and need neither an engine nor a JVM.

Called by cli, connectors, testing, web, workspace; imports catalog, core, log, operators, state.

In import order, bottom to top:

    base/      the target interface, and the loop that all kinds share
    iceberg/   Apache Iceberg tables (LAKE)
    parquet/   Parquet files
    postgres/  Postgres tables
    python/    a user's function
    redis/     Redis hashes, strings and sorted sets
    search/    full-text indexes (tantivy)
    topic/     topics of the same workspace
    webhook/   HTTP POST
    registry   creation of the target of each kind, and the checks of sink options
"""
