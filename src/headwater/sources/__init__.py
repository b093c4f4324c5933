"""Sources: changes of external systems captured as rows of topics, each commit with its position.

A source knows nothing of the log: it reads on from a position of its own and yields rows and commits.
`source_runner` appends each commit and its position in one atomic append, so that both are there after a
crash or neither is.

Called by cli, connectors, testing, web; imports catalog, core, log, sql.

In import order, bottom to top:

    base             the interface of a source: read on from a position, yield rows and commits
    row_sizes        sizes of rows, checked before the rows are made
    clock_positions  positions by the clock, for sources without positions of their own
    log_lookup       live keys and last values of a captured table, from the log
    source_setup     what a source is made of
    postgres/        FROM POSTGRES: logical replication
    source_faults    faults of a source and of its tables
    files/           FROM FILES: lines, JSON, CSV and Parquet
    python_source    FROM PYTHON: a user's class
    source_runner    the loop from a source into the log
    statsd/          FROM STATSD: metrics over UDP
    webhook_source   FROM WEBHOOK: deliveries to the HTTP server
    registry         sources opened by their kinds
"""
