"""Python sink: changes of a view passed to a user's function.

Called by connectors, sinks.registry; imports core, sinks.base.

It holds:

    target  the target
"""
