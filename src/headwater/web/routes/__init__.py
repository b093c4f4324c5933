"""Routes of the HTTP API, one module per resource.

Called by web.app; imports catalog, connectors, core, engine, log, serving, sources, modules of web.

In import order, bottom to top:

    health     `/health`, `/health/ready`, `/metrics`
    openapi    the OpenAPI document and its page
    searching  `/sinks/{sink}/search`
    topics     `/topics/{topic}`
    views      `/views/{view}`
    hooks      `/hooks/{name}`: incoming webhooks
    pages      `/plain`: pages without scripts
    queries    `/query`
"""
