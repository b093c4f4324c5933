"""Iceberg sink: a view as an Apache Iceberg table, by pyiceberg (LAKE).

Called by sinks.registry; imports catalog, core, sinks.base.

In import order, bottom to top:

    table_files    data and delete files, and rows found by key
    table_commit   one commit: files added and removed as one snapshot
    versions       the staging version as a branch
    lake_table     the table in its catalog: opened or created, and checked
    old_snapshots  deleted rows that older snapshots and data files retain
    target         the target
"""
