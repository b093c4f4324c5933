"""The embedded log: durable topics in a folder, with no server. `log` puts it together."""

from headwater.log.embedded.log import EmbeddedLog

__all__ = ["EmbeddedLog"]
