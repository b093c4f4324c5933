"""Console: the web page that shows a workspace, and the data that it asks for.

Called by web.access_control, web.app; imports catalog, connectors, core, engine, log, operators, sinks,
state, views, modules of web.

In import order, bottom to top:

    console_files   static files of the page
    console_graph   layout of the dataflow graph
    console_health  health, alerts and rejected rows
    console_ticks   the ticks that are kept
    console_data    what it shows, from the log and committed ticks
    console_live    live metrics, sampled once a second for all clients
    console_api     routes of the console
"""
