"""Core vocabulary: errors, types, time, hashing and access to the disk, used by every other package.

Called by every other package; imports nothing of Headwater.

In import order, bottom to top:

    errors              every error that a user can get, with its facts as attributes and a hint
    malloc              keeps freed memory in the process, by glibc's mallopt
    names               names of topics and views, matched without regard to case
    parallel            independent work on several cores; joinable threads
    table_text          a few rows of a table as text, for `str()`
    values              single values converted to a column's type, or rejected
    arrow_bodies        Arrow IPC streams from clients, validated before they are decoded
    clock               time in UTC microseconds, the injected clock, durations as text
    extras              optional dependencies: the extra that a feature needs, and the error if it is missing
    group_commit        one leader does the work of all waiting requests (group commit)
    hashing             the stable 64-bit hash of key columns, and row identity
    positions           partitions, offsets, half-open ranges and append receipts
    settings            the settings of a workspace, each with unit, default and reason
    storage             every read, write, lock and sync of the disk; the seam for fault injection
    types               column types: Spark SQL names to Arrow types and back
    arguments           checks of arguments that users pass
    json_csv            values to and from JSON and CSV text
    text_analysis       tokenizing and normalizing text, for search indexes and stored queries
    trusted_clock       the wall clock of a log, checked against the monotonic clock
    webhook_signatures  HMAC signatures of webhooks, made and verified
    faults              errors of background threads, stored until the work succeeds again
"""
