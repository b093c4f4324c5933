"""Topics and views as a Spark data source, in parts; `headwater.runtime.source` puts them together."""
