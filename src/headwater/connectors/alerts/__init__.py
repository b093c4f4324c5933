"""Alerts: conditions on views and metrics, evaluated next to an engine, and notifications.

Called by connectors.supervisor; imports catalog, connectors.manage, core, engine, log, serving, sinks, sql, views.

In import order, bottom to top:

    alert_conditions  the condition of an alert, on a view or a metric
    alert_episodes    firing and resolved alerts, as records of `_alerts`
    notify            notifications by POST or mail
    alerts            alerts of a workspace: declared and evaluated
"""
