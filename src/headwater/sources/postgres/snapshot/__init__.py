"""Snapshots: existing rows of a table, all at once or in chunks while the stream continues.

Called by sources.postgres.capture_session, sources.postgres.emit_rows, sources.postgres.gaps,
sources.postgres.postgres_source; imports catalog, core, sources.base, modules of sources.postgres.

In import order, bottom to top:

    empty_topic           tombstones for all keys of a topic
    table_locks           locks against TRUNCATE and rewrite during a copy
    snapshot_rows         rows of a snapshot, by COPY
    wanted_snapshots      requested snapshots, and changes in the stream that are skipped until then
    incremental_snapshot  chunks selected while the stream continues, merged with its changes
"""
