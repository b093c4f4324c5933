"""Joins: equi-joins and range joins maintained incrementally from the deltas of both sides.

Called by engine, lineage; imports core, operators.zset.

In import order, bottom to top:

    pairs       pairs of matching rows from one side's state or delta and the other side's delta
    join        the equi-join operator: inner, outer, semi and anti
    range_join  joins on a range: interval joins, and as-of joins with a version
"""
