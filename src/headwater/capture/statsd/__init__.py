"""Capture of StatsD metrics over UDP: datagrams are received, parsed in vectors, and appended together."""
