"""SQL in, what it asks for out: statements, and later the operator graph of a view."""
