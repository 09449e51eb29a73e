"""The semantics of a function: one shard, one epoch, no Spark."""
