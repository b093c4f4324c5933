"""Views: declared, run, rebuilt, explained and monitored.

`workspace` passes everything about views to `view_manager`, whose parts declare, read and report.

Called by cli, connectors, deletion, execution, metrics, web, workspace; imports catalog, core, engine, lineage, log,
operators, plan, serving, spark, sql, state, udf, verify.

In import order, bottom to top:

    dead_letter_actions  actions on dead letters, as records of `_dead`
    idle_partitions      watermarks of idle partitions, expiry of silent producers
    late_replay          replay of late rows
    pacing               the pause between ticks: latency against throughput
    private_copies       columns of a query with private values, traced through all views below
    rebuild              rebuild of views
    standing_queries     `ws.standing(name)`: stored queries added, removed, listed
    state_growth         state bounds of views; the check of `state = 'bounded'`
    udf_declarations     declaration of functions and folds, and its effect on views
    view_keys            the key of a view, from its graph and the views below
    explain_view         EXPLAIN of a view, as text and as Mermaid
    runner               running the engine: once, or in the background
    view_names           names of views, and their definitions
    view_declarations    views created, replaced, dropped, rebuilt
    view_reads           queries, contents, changes and streams of views
    view_reports         SHOW VIEWS, EXPLAIN, row counts, keys, verification
    view_manager         `Views`: runs views, and has the parts above
    view_status          status of views, from the log and the newest tick
    view_handle          `ws.view(name)`
"""
