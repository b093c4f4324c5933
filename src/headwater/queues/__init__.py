"""Queues: records of a topic as messages, leased to workers, acknowledged, retried or dead-lettered.

Workers write their operations as records to a topic that belongs to the queue. Every process folds these records into
the same state, so there is no coordinator.

Called by cli, connectors, deletion, execution, metrics, workspace; imports catalog, core, log, privacy.

In import order, bottom to top:

    encrypted_messages  copies of messages with private values encrypted
    message_positions   message positions as integers, ranges and sets
    queue_definition    the definition of a queue, in the catalog
    queue_records       operations on messages, encoded as records and decoded
    queue_state         the state of a queue, folded from its records
    prefetch            unclaimed messages that this process could lease, cached
    queue_checkpoint    the state of a queue encoded as bytes, for its checkpoint
    queue_dead_letters  dead messages, in the topic `<queue>.dead`
    folded_queue        the state of a queue in one process, folded from the records as others append them
    queue_client        one process's client of a queue: batches operations in appends
    message             `Message`: a row and its lease
    queue_ddl           CREATE, lookup and DROP of queues
    queue_status        status of a queue
    excised_messages    excised records removed from a queue
    queue_asyncio       `Queue` for asyncio
    queue_worker        worker threads that call a handler
    queue               `Queue`: receive, acknowledge, return
    workspace_queues    `ws.queue`, `ws.queues` and `ws.drop_queue`
"""
