"""Facets: the types that describe properties of operators.

The kinds of `dataflow.operators` compute them for one operator, from the properties of its inputs; callers
that need a property of a whole graph walk the graph themselves.

Called by engine.dataflow, lineage, views; imports core, operators.

In import order, bottom to top:

    column_origins  the private values that a column depends on, and the subjects that it names
    kept_state      number of rows of an operator, its state, and the bounds of both
    unique_keys     columns that are a key
    row_sets        rows as sets: by value or by key
    demands         rows of inputs that rows of an operator come from, for lineage
"""
