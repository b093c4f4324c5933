"""Server: connections to Postgres, and what must exist there: publications, a slot, and one history.

Called by cli, connectors, modules of sources.postgres; imports catalog, core, sources.base,
sources.postgres.decode.

In import order, bottom to top:

    connection       ordinary and replication connections (psycopg)
    options          options of the declaration
    publications     tables, publications and replication slot: checked or created
    stream_overlap   proof of one history: the stream overlaps what was captured
    postgres_doctor  what a server lacks for capture, each with the statement to run
    server_identity  whether a position belongs to this server, timeline and slot
    slot_monitor     WAL that the slot retains, against its budget
"""
