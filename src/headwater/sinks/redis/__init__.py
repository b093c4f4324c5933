"""Redis sink: hashes, strings or sorted-set members, written in one step with the checkpoint.

Called by sinks.registry; imports core, sinks.base.

In import order, bottom to top:

    redis_protocol  RESP commands and replies as Arrow columns
    encoding        rows as Redis keys and values
    existing_names  the names that exist, and whether they are of the sink's type
    versions        staging names, renamed by one script
    target          the target
"""
