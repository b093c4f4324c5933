"""Connector deletion: excised records and forgotten subjects removed from sinks.

Called by connectors.supervisor, deletion; imports catalog, connectors.manage, core, engine, log, operators,
plan, sinks, state.

In import order, bottom to top:

    copied_topics  records that topic sinks copied, for excision
    erase_sinks    deletion in targets, and reports of what remains
"""
