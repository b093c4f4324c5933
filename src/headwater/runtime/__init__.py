"""The engine: graph and cut become a tick."""
