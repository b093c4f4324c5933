"""Tick: advances all views to one cut through the log, and commits.

Called by cli, verify, views; imports catalog, core, log, operators, plan, state, modules of engine.

In import order, bottom to top:

    tick_budget          how many rows a tick may take in, by the memory that ticks use
    backfill_parts       the parts of a backfill, and when an error over one of them counts
    collection_progress  positions and status of a collection before and after a tick
    collection_states    states of views, tables and derived relations as a manifest has them
    tick_state           a tick under way: what its three phases share
    planning             first phase: which collections are advanced, rebuilt, held back or stopped
    advancing            second phase: collections run their steps, level by level
    committing           third phase: the manifest with the positions of every collection
    tick_run             `TickRun`: one run of a tick, through the three phases
    deletion_run         `DeletionRun`: the run of a tick that applies deletions
    tick_engine          `Engine`: chooses the cut, runs a tick, commits it
    listener             progress of engine and statements, reported to programs
    tracing              ticks as OpenTelemetry spans
"""
