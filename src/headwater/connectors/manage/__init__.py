"""Connector management: sources and sinks declared, started, waited for, explained and rebuilt.

Called by cli, execution, testing, web, workspace, modules of connectors; imports catalog, connectors.dead_letter_store,
core, engine, log, queues, sinks, sources, sql, views.

In import order, bottom to top:

    declarations             declarations of sources, sinks and alerts by name
    queue_webhooks           messages of a queue posted over HTTP
    recent_counts            counts over the last minutes
    search_filters           the parser of search filters: `country=ch`, `price<=10`
    sink_private_copies      private values that sinks copy: encrypted, or rejected
    source_schema_evolution  topics and views that follow a captured table's schema
    status_board             status of running connectors, published in a file for other processes
    sink_declarations        the declared sinks, checked against their views and targets
    sink_runners             the running sinks of this process, each in a thread
    sink_statuses            status of sinks that run here or in another process
    sink_manager             `Sinks`: all operations on the sinks of a workspace
    webhooks                 webhook sources: lookup and counts, for the HTTP server
    rebuild_sink             rebuild of a sink, for `ws.sink(name)` and `headwater rebuild`
    sink_probe               status of targets with a short timeout
    source_declarations      the declared sources, checked by connecting
    source_orders            orders to sources: snapshot, pause, resume, restart a table
    source_positions         positions in sources, as text
    source_runners           running sources in threads, and sources caught up once
    source_manager           `SourceManager`: all operations on the sources of a workspace
    explain_connectors       EXPLAIN of a source or a sink
"""
