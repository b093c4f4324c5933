"""Search sink: a view as documents of a tantivy index, and searches of that index.

Called by connectors, sinks.registry; imports core, sinks.base.

In import order, bottom to top:

    search_schema  columns as index fields, rows as documents
    versions       staging indexes, and the file that names the active one
    search_index   full-text search, filters and highlighting
    target         the target
"""
