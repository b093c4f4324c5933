"""Embedded log: durable topics in a folder, shared by processes of one machine, without a server.

A commit is one record of the journal. The writer holds one lock while it checks, stamps and writes; concurrent commits share a
sync.

Called by cli, serving, spark_datasource, testing, workspace; imports catalog, core, privacy, modules of log.

In import order, bottom to top:

    journal/           the journal of commits, its recovery, and notification of waiting readers
    maintenance_round  a maintenance round: its steps run one by one, failures become faults
    commit             the write path of all commits: one lock, one journal record each
    key_counts         record counts per key, for optimistic concurrency
    preconditions      conditions of a commit, checked under the lock before anything is written
    segments/          reading, sealing and compacting segments
    base               `LogFolder`, shared by the modules below: journal, segment reader, clock, keys
    known_devices      device clock state of an appending process
    rewrite_segments   rewriting segments as sealed ones, watermarks preserved
    verification       integrity check of journal, checkpoints, frames and sealed files
    append             the append path: encode, lock, check, stamp, write, flush
    topics             topics created, altered, replaced and dropped
    catalog_entries    entries of the catalog
    consumers          cursors and consumer groups
    punctuation        punctuation, idle partitions and producer watermarks
    staging            atomic appends larger than memory, written to files first
    creation           creating a workspace folder, and reading `headwater.json`
    maintenance        maintenance: close and seal segments, retention, compaction
    excise             excision of records: segments rewritten without them, offsets left as gaps
    read               reads: bounds, records, seeks, watermarks, waiting
    embedded_log       `EmbeddedLog`: the log protocol, delegated to the other modules
    open_logs          logs kept open between the tasks of a Spark process
"""

from headwater.log.embedded.embedded_log import EmbeddedLog

__all__ = ["EmbeddedLog"]
