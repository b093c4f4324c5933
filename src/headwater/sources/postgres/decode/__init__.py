"""Decoding: pgoutput messages and COPY text to Arrow columns, in vectors; no connection is used.

Called by modules of sources.postgres; imports catalog, core.

In import order, bottom to top:

    buffer_slices    slices of one buffer as an Arrow column
    pgoutput         messages of the replication protocol
    postgres_values  Postgres text values to Arrow columns
    row_buffer       undecoded rows of the stream, by table and in order
    postgres_types   Postgres types and their column types
    relations        a Postgres table as a topic: columns, definition, evolution
    decode_rows      a run of row messages to Arrow columns
    copy_format      COPY ... TO STDOUT text to Arrow columns
"""
