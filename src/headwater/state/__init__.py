"""State: committed ticks on disk, as immutable runs and one manifest per tick.

Runs are written and synced first, then the manifest is created in one step. Readers open the newest manifest
or an older one that is still kept, and need neither an engine nor a JVM. State can be deleted and rebuilt
from the log, except base ticks of views whose records were removed.

Called by cli, connectors, engine, lineage, metrics, serving, sinks, spark_datasource, testing, verify, views,
web; imports core, operators.

In import order, bottom to top:

    merge_policy   when runs are merged (geometric)
    missing_ticks  the error for a tick that is not kept
    run_refs       a reference from a manifest to a run
    state_files    names of files below `state/`
    cut_history    the cut of every tick, kept permanently
    manifest       the manifest of a tick: every run of every arrangement
    ownership      the engine that may commit ticks: one owner, fenced by epoch
    run_files      the file format of a run
    task_exchange  files that the engine and its Spark tasks exchange within one step
    cache          open runs, memory-mapped
    garbage        files that no kept manifest names
    writer         the writer of a tick's runs: small runs share a file, large ones have their own
    manifests      the manifests of all ticks, and the cuts of collected ticks
    stored_runs    opening and verifying run files, and releasing removed ones
    base_ticks     base ticks, kept because records that they were built from are removed
    store          `StateStore`: commit a tick, open a tick, collect garbage
    damage         detection of missing or damaged runs
    view_reader    reading a view's rows and changes from committed ticks
"""
