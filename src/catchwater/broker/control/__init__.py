"""The HTTP port for operators and for our own clients of plans, pins and epochs.

    GET    /healthz                                   the process is up
    GET    /readyz                 it takes requests; 503 while it stops or lacks its storage
    GET    /metrics                                   Prometheus
    GET    /api/v1/cluster                            the brokers, and this one's session
    GET    /api/v1/topics                             {"topics": [{"name", "id", "partitions"}]}
    GET    /api/v1/topics/{topic}                     offsets, bytes and places of each partition
    POST   /api/v1/plans                 where offsets lie in storage, and what of them was aborted
    GET    /api/v1/bytes/{object}        the bytes that a plan has named to a reader elsewhere
    GET    /api/v1/pins                               {"pins": [...]}
    PUT    /api/v1/pins/{id}             {"owner", "positions", a lease, "max_bytes"}
    PATCH  /api/v1/pins/{id}             {"lease_ms"}: its lease ends so long from now
    DELETE /api/v1/pins/{id}
    GET    /api/v1/sinks/{pipeline}/{sink}            the sink's last epoch
    GET    /api/v1/sinks/{pipeline}/{sink}/epochs/{epoch}   what it committed as this epoch
    PUT    /api/v1/sinks/{pipeline}/{sink}/epochs/{epoch}   write an epoch once
    GET    /api/v1/pipelines[/{name}]                 what they have last reported, and its age
    PUT    /api/v1/pipelines/{name}/report            a running pipeline's `PipelineStatus`
    GET    /api/v1/storage                            {"objects": url}
    POST   /api/v1/grants                {"bytes", "client_id"}: what may be read of the quota, when

Every error is JSON: {"error": code, "message": sentence, "hint": sentence or null}. A plan for
offsets that were deleted is answered 416 with the missing ranges, a topic that the gate denies 403.
Bodies are bounded. Every path declares what it asks (`entry`); users log in by HTTP Basic.
"""
