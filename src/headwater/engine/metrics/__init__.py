"""Tick metrics: time per phase, records read, and totals stored in the state.

Called by engine.collections, engine.input, engine.tick, metrics, views, web; imports core, log, state.

In import order, bottom to top:

    phases       time of a tick by phase
    rows_taken   records that ticks read, each counted once
    tick_totals  cumulative cost of all ticks, kept in manifests
"""
