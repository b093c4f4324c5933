"""Catalog: definitions of topics, views, sources, sinks and alerts, and the rules that they must satisfy.

Definitions are plain values; `log` stores them.

Called by most packages above it; imports core.

In import order, bottom to top:

    options            an option of WITH (...): type, default and meaning
    statement_options  options of topics, views and standing queries
    source_options     options of sources, by kind
    sink_options       options of sinks and of the notifications of alerts, by kind
    system_relations   columns and topics that Headwater adds, with their meanings
    dropped_columns    columns that a captured table no longer has
    time_options       event-time options of a topic: watermark column, lateness, device clocks
    rules              validation of a topic definition, at creation and at every change
    connector_kinds    the kinds of sources and sinks, one row each
    connectors         source, sink and alert definitions, and which options are secret
    definitions        topic definitions, and which schema changes are compatible
    view_definitions   view definitions
    conform            rows from users converted to Arrow batches of a topic's schema, or rejected
"""
