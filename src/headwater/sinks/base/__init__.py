"""Sink base: the target interface, and what all kinds share: apply, retry, verify, rebuild.

Called by cli, connectors, testing, web, workspace, modules of sinks; imports core, log, operators, state.

In import order, bottom to top:

    checksums        an order-independent checksum of rows
    circuit_breaker  a circuit breaker for targets that do not answer
    json_values      values as JSON
    key_search       rows found by key in files without an index
    last_delivered   the last tick delivered to a receiver without a checkpoint, recorded next to the workspace
    read_ahead       prefetching of pages from a server
    target           `Target`: the interface of every kind, and its checkpoint
    text_values      values as text
    view_feed        the committed ticks that a sink reads
    at_least_once    delivery to receivers without a checkpoint, by idempotency keys
    sink_setup       the inputs from which a target is created
    blue_green       the interface of versions: staging, active, previous
    http_post        signed and retried POST requests
    net_changes      changes of several ticks as one upsert or delete per key
    sink_status      status of a sink: state, lag, rejected rows
    upsert_key       the key of a sink: given or derived, and unique
    folder_swap      versions as folders, swapped by rename
    rejected_rows    rejected rows that were diverted, stored with the checkpoint
    sink_report      the published status of a running sink, for readers, listeners and waiters
    target_position  the last known checkpoint of a target, and whether the next changes follow it
    diversion        handling of rows that a target rejects
    applier          `Applier`: read ticks, net changes, apply, reconcile
    sink_runner      one sink in a thread, with retries
    sink_verify      a target compared with its view, and repaired
    sink_rebuild     rebuild: fill the staging version, catch up, compare, switch
"""
