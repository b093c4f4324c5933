"""Windows: session windows, sliding frames, cumulating windows, ranking and emit on close.

Called by engine, lineage, operators.match_recognize, plan, serving; imports core, operators.aggregate,
operators.table, operators.zset.

In import order, bottom to top:

    cumulate           cumulating windows: a row's contribution to each growing window
    emit_on_close      rows delayed until the watermark makes them final
    ranking            top-k per group
    sessions           session windows over input with retractions
    window_frames      functions over frames of sorted rows: count, sum, avg, min, max
    session_aggregate  session aggregates over append-only rows, without storing the rows
    sliding_aggregate  OVER with a sliding frame, recomputed near changed rows
"""
