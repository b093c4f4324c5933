"""The ticks on disk: runs, manifests, cuts, and which engine may write them. Readers need no engine and no JVM."""
