"""Capture: what changes outside becomes rows of topics, in order, with the position in the same commit."""
