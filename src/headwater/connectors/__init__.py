"""Connectors: sources, sinks and alerts declared, run, monitored, verified and rebuilt.

`workspace` passes everything about external systems to `supervisor`.

Called by cli, deletion, execution, metrics, testing, web, workspace; imports catalog, core, engine, log, operators, plan,
queues, serving, sinks, sources, sql, state, views.

In import order, bottom to top:

    dead_letter_store/  the interface of a dead-letter store, which every kind of owner of dead letters implements
    manage/             managers of sources and sinks
    alerts/             alerts and their notifications
    dead_letters/       dead letters of sources, views, sinks and queues
    deletion/           deletions carried on into sinks
    health/             health of every component, and counts of rejected rows
    supervisor          all connectors of a workspace: declared, run, queried
    handles             `ws.source(name)` and `ws.sink(name)`
"""
