"""Chapter 2: one request in, one reply out.

The broker speaks Kafka's protocol to clients and HTTP to people and pipelines. It keeps nothing
that a restart would miss: what must last is in the log and in the catalog.
"""
