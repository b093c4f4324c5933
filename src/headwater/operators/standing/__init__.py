"""Standing queries: search turned around. `syntax` reads queries, `nodes` says what they mean, `index` finds those that a document meets."""
