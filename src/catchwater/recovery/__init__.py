"""Chapter 11: what a restore would need, and doing it.

Reads checkpoints without Spark, computes the contract of each, and makes it binding on the log by
pins; knows which checkpoint of a pipeline writes (`handover`), goes back within one (`rewind`), and
copies one to where it outlives it (`savepoint`).
"""
