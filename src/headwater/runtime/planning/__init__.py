"""SQL to operator graph: Spark plans the SELECT, and its plan is read off as our few operators."""
