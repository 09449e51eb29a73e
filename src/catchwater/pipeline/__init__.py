"""Chapter 9: stateful functions on Spark.

A user's function is run event by event against state that lives by shard beside the compute and
is logged into Spark's own checkpoint, so that offsets and state are one atomic thing.
"""
