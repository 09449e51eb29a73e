"""Chapter 8: state by shard.

A shard's entries in a local store beside the compute, and the log of their changes in an object
store, from which any machine makes them again.
"""
