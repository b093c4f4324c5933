"""Log: durable, partitioned, typed topics with offsets, atomic commits, watermarks and consumer groups.

`protocol` states what every backend guarantees; `testing.contract` tests it. The embedded backend stores its data in a folder;
the memory backend is the readable specification. A commit covers any number of partitions and topics, commits have one total
order, and readers see whole commits only.

Called by most packages above it; imports catalog, core, privacy.

In import order, bottom to top:

    group_assignment     assignment of a topic's partitions to the members of a group
    key_index            an index from key to the offset of its last record, or of all its records
    protocol             the interface of a log backend, and its guarantees
    routing              the partition of a row: by key hash, or spread
    watermarks           the watermark of a partition as a function of its records
    commit_history       detection of commit numbers from another history (a restored older copy)
    cuts                 consistent cuts across topics, which split no commit
    deletion_entries     deletions as typed entries of the catalog
    device_clocks        correction of timestamps from devices with wrong clocks
    forecast             when retention overtakes a cursor, and when the disk is full
    producer_watermarks  the minimum watermark over a topic's producers
    reader               reading a topic as Arrow batches, up to a cut or following the end
    repeated_appends     row checksums that distinguish an idempotent producer's retry from a reused sequence
    topic_names          lookup of topic names, and rules for new ones
    append_rows          rows from users to one commit, staged in files if they exceed memory
    backpressure         appends that wait or fail when a holding cursor is too far behind
    cursor               `Consumer`: a named position in a topic, committed and with its lag
    lag                  lag of every cursor
    embedded/            the embedded backend: a folder, shared by processes of one machine
    group                a consumer group: partitions assigned to member processes
    memory/              the in-memory backend
    transaction          `Transaction`, an atomic append made step by step
    topic                `Topic`, the handle that users append to and read from
"""
