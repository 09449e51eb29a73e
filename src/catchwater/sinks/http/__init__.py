"""Chapter 10, endpoints: outputs as idempotent HTTP requests."""
