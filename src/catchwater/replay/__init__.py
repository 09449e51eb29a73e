"""Chapter 7: history without brokers.

A plan says where the bytes of an offset range lie; tasks read them from storage and decode them
to Arrow. The same source reads any Kafka over the protocol. Where a job only moves data, tasks
write a range as Parquet files themselves (`export`).
"""
