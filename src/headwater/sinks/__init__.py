"""Sinks: committed ticks of a view go outside, to followers that are kept in step. One file per kind, one contract."""
