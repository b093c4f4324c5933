"""Postgres sink: a table, upserted by key in one transaction with the checkpoint.

Called by sinks.registry; imports core, operators, sinks.base.

In import order, bottom to top:

    tables     columns, types and statements of the table
    positions  the table of checkpoints, with a row for each sink
    versions   the staging table, renamed in one transaction
    target     the target
"""
