"""Row errors: rows that a view rejects or that are late, and their counts.

Called by cli, connectors, engine.collections, engine.tick, verify, views, workspace; imports core,
engine.dataflow, log, operators, plan, spark, state.

In import order, bottom to top:

    diverted_rows        `on_error = 'divert'`: rows on which a view's expressions fail
    late_rows            late rows, found and reported in `<view>.late`
    rejected_row_counts  counts of excluded rows, and differences between two counts
"""
