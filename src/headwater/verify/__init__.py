"""Verification: compares views with their SELECTs run in batch, at the cut of a tick.

Called by cli, lineage, views, workspace; imports catalog, core, engine, log, operators, plan, serving, sql, state.

In import order, bottom to top:

    frequent_values    frequent values of a view compared with all values of its groups
    recompute_matches  all matches recomputed from the records, for `verify`
    table_equality     equality of two tables, in any order, floats within tolerance
    recompute_units    topics, row versions and collections on a base, recomputed at any cut
    recompute_at       a view recomputed at any cut, from the log or a base tick
    sketch_bounds      equality within the error bounds of sketches
    shadow_comparison  verify a shadow build before it is switched in
    verification       verify views at the newest tick
"""
