"""Console: the web page that shows a workspace, and the data that the page requests.

Called by web.access_control, web.app; imports catalog, connectors, core, engine, log, operators, sinks, state, views,
modules of web.

In import order, bottom to top:

    console_files   static files of the page
    console_graph   layout of the dataflow graph
    console_health  health, alerts and rejected rows
    console_ticks   summaries of the kept ticks
    console_data    data of the page, from the log and committed ticks
    console_live    live metrics, sampled once a second for all clients
    console_api     routes of the console
"""
