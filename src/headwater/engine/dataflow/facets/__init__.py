"""Facets: the types in which operators say what is known of them.

The kinds of `dataflow.operators` fill them in for one operator, from what is known of its inputs; walks over
whole graphs are where their callers are.

Called by engine.dataflow, lineage, views; imports core, operators.

In import order, bottom to top:

    column_origins  whose private values a column is made of, and which subject it names
    kept_state      how many rows an operator has, what it keeps, and what bounds that
    unique_keys     which columns are a key
    row_sets        rows as sets: by value or by key
    demands         rows of inputs that rows of an operator come from: what lineage asks
"""
