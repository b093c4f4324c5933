"""Capture from Postgres by logical replication. No extension is needed; `pgoutput` is part of every server.

The way of a row, by module; those up to `copying` know bytes and no connection:

    messages    bytes of the replication stream -> what they say, but for rows
    gathering   rows by table, in order, undecoded: Gathering.feed, .seal, .take, .end; Run, Transaction
    decoding    a run -> Arrow columns, in vectors: decode(run, table) -> Changes
    copying     COPY TO STDOUT in text -> the same columns: decode_copy(lines, table)
    cutting     pieces of a buffer as a column, which both come down to
    values      texts as Postgres writes them -> Arrow; SETTINGS are what a session has to set for that
    pgtypes     Postgres types -> column types and the converters of their values
    relations   what a table is: table_of(relation, facts, types), definition_of, and evolve when it changes
"""
