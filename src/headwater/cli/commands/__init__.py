"""Commands of the command line, one module for each command or small group of commands.

Called by cli.program; imports catalog, connectors, core, deletion, engine, execution, lineage, log, queues, serving,
sinks, sources, spark, sql, state, verify, views, web, workspace, modules of cli.

In import order, bottom to top:

    append       `append`
    dead         `dead`
    deletion     `forget`, `excise`, `deletions`, `rotate-keys`
    demo         `demo`
    doctor       `doctor`
    metrics      `metrics`
    queue        `queue`
    repl         `sql` without a statement, at a terminal
    search       `search`
    serve        `serve` and `token`
    standing     `standing`
    tail         `tail`
    views        `views`
    why          `why`
    engine       `run`
    maintenance  `cursors`, `lag`, `maintain`, `verify`
    status       `status`
    topics       `init`, `topics`, `sql`
    late         `late`
    rebuild      `rebuild`
"""
