"""Webhook sink: changes of a view as JSON POST requests.

Called by sinks.registry; imports core, sinks.base.

It holds:

    target  the target
"""
