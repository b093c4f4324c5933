"""Collections: the relations that a tick advances (views, tables, table versions), and their arrangements.

Called by cli, connectors, engine.deletion, engine.input, engine.tick, execution, lineage, serving, verify,
views, web, workspace; imports catalog, core, engine.dataflow, engine.merging, engine.metrics,
engine.row_errors, log, operators, plan, spark, sql, state, udf.

In import order, bottom to top:

    shadow_builds      views rebuilt while the served version goes on, until compared and switched
    collection_stages  the stage of a keyed topic's table, and the last stage of a view
    row_ledger         row accounting: rows that a view has read, and what became of them
    collections        views and keyed topics as tables: the stages and the arrangements of each
    collection_steps   steps of collections, for an executor or in this process
    arrangements       arrangements during a tick: runs of the last manifest and added runs
    version_table      all versions of a keyed topic's rows
    workload           the collections of a workspace, planned and in dependency order
    dependencies       which views read which
    engine_context     the parts that need Spark, created at first need
    retention_holds    records that views still need, and when a base tick is made
"""
