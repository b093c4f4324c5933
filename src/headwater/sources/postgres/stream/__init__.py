"""Stream: the replication stream received in a thread and assembled to transactions in commit order.

Called by sources.postgres.capture_session, sources.postgres.emit_rows, sources.postgres.postgres_source,
sources.postgres.snapshot; imports core, sources.postgres.decode, sources.postgres.server.

In import order, bottom to top:

    receiver      a thread that receives the stream and sends keepalives
    spill         rows of an unfinished transaction, in memory or a temporary file
    transactions  messages to whole transactions
"""
