"""Topic sink: a view as another topic of the workspace: a keyed table or a changelog.

Called by connectors, sinks.registry; imports catalog, core, log, operators,
sinks.base.

In import order, bottom to top:

    versions  the staging topic, and which topic is active
    target    the target
"""
