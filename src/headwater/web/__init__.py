"""The workspace over HTTP: rows come in, views and topics go out. Started by `headwater serve` and `headwater run --console`."""
