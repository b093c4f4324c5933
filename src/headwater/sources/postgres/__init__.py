"""Postgres source: change data capture by logical replication (pgoutput), without an extension.

A row passes `stream` and `decode`, waits in `rows` while a TOAST value is missing, and leaves through
`emit_rows`.

Called by cli, connectors, sources.registry; imports catalog, core, sources.base, sources.row_sizes.

In import order, bottom to top:

    decode/          bytes of pgoutput and COPY to Arrow columns
    server/          connection, options, publications, slot, server identity
    rows/            captured tables, schema changes, pending TOAST values
    stream/          the replication stream to whole transactions
    session_state    state that the parts of a session share
    outbox           the outbox pattern: events of the application routed to topics
    snapshot/        initial and incremental snapshots
    emit_rows        decoded, complete rows of whole transactions, in topic columns
    gaps             tables with missing changes, and what is done about each
    first_copy       tables as of the beginning of a new slot, in one append
    upkeep           slot, publications and tables compared with what they were
    capture_session  one connection: checks, first snapshot, then the stream
    postgres_source  the source: connects, and reconnects after failures
"""
