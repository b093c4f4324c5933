"""Journal: the checksummed file of all commits in order, the state replayed from it, and its recovery.

Called by cli, serving, spark_datasource, modules of log.embedded; imports catalog, core, modules of log.

In import order, bottom to top:

    checkpoint      checkpoints of the journal, written when due
    clock_file      the last trusted reading of the wall clock, shared by processes
    commit_ids      random ids of commits, which distinguish two histories
    commit_outcome  whether a failed commit took effect: not written, or unknown
    file_names      names of all files that the log writes
    frames          a frame: one checksummed record batch in an active segment
    notify          waiting for commits of other processes by inotify
    journal_file    the journal file: checksummed records, append and scan
    head            the published position up to which the log is visible
    journal_state   the state replayed from the journal: topics, segments, producers, cursors, groups
    record_kinds    the change of the state by each kind of record
    salvage         recovery of a damaged journal record that was acknowledged
    recovery        opening a workspace: checkpoint, journal chain, loss of power
    follow_journal  reading the journal as other processes extend it
    open_segments   segments that a process has open for appending
    durability      syncing commits and publishing them as visible
    next_journal    beginning and entering the next journal
    flush           waiting until commits are durable and visible, many at once
"""
