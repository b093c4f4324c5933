"""The engine: graph and cut become a tick. Today it holds the search for Java that Spark will need."""
