"""HTTP server: appends, queries, changes as server-sent events, webhooks and the console.

Started by `headwater serve` and `headwater run --console`. Starts no JVM.

Called by cli; imports catalog, connectors, core, engine, log, operators, serving, sinks, sources, sql, state, views,
workspace.

In import order, bottom to top:

    commit_waiters    waiting for ticks and records without a thread per client
    parameters        query-string parameters
    problem_types     the problem types of each route
    problems          errors as problem documents (RFC 9457)
    server_settings   settings of the server
    shared_receipts   the receipt of each post in a shared append
    tokens            access tokens and their scopes
    idempotency_keys  responses of repeated posts, by idempotency key
    large_responses   large responses, in bounded memory
    request_bodies    request bodies to rows: JSON, JSON lines, Arrow
    response_formats  response formats: JSON, JSON lines, Arrow
    worker_threads    bounded threads for blocking work
    committed_reads   reads of views and topics from committed ticks
    event_streams     streams: server-sent events, JSON lines, Arrow batches
    ingest            posts batched into shared appends
    request_limits    limits on connections and on incoming requests
    server_context    the context that routes share: workspace, threads, shutdown
    console/          the console: routes and data
    routes/           routes of the API
    access_control    authentication, allowed hosts and origins, error responses
    app               the ASGI application: all routes
    server            the server process: bind, serve, shut down
"""
