"""Input: the records that a tick reads from the log, or that an excision removed from it.

Called by deletion, engine.deletion, engine.tick, verify; imports catalog, core, engine.collections,
engine.metrics, log, operators, plan, privacy.

In import order, bottom to top:

    excised_records  excised records, kept until a tick has retracted them
    log_input        records of a tick, each span read once for all views
    log_range        a range of a topic, as a stage reads it
"""
