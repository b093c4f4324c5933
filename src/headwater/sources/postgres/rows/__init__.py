"""Rows: captured tables, their identity and schema changes, and rows with pending TOAST values.

Called by modules of sources.postgres; imports catalog, core, sources.base, sources.postgres.decode,
sources.postgres.server, sources.row_sizes.

In import order, bottom to top:

    column_attributes  columns by attribute number, since which position
    schema_changes     what a topic does when its table changes
    table_identity     what must not change for a position to be valid
    toast_fill         unchanged TOAST values, filled in from their last record
    captured_tables    tables captured now: decoder, topic, or stopped
    toast_pending      changes that wait for a value that the server did not send
"""
