"""StatsD source: metrics received over UDP, parsed in vectors and appended in batches.

Called by sources.registry; imports catalog, core, log, sources.base, sources.clock_positions, sql.

In import order, bottom to top:

    statsd_lines   StatsD and DogStatsD lines to columns
    udp_listener   a thread that empties the UDP socket
    statsd_source  the source
"""
