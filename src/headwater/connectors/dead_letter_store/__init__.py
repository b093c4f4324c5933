"""Dead-letter storage: the interface of dead-letter stores, and the topic of rows that a sink's target rejected.

Called by cli, connectors.dead_letters, connectors.health, connectors.manage; imports catalog, core, log, operators, serving,
sinks, views.

In import order, bottom to top:

    letter_store  the interface of a dead-letter store, which every kind of owner of dead letters implements
    sink_letters  rejected rows of a sink as dead letters, on a topic of the sink
"""
