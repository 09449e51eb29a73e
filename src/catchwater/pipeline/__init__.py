"""Chapter 9: stateful functions on Spark.

A user's function is run event by event against state that lives by shard beside the compute. The
changes of an epoch are logged as objects beside Spark's checkpoint; the epoch's entry in the ledger
says where its input ended, where its state stands and what its sinks have, all at once.
"""
