"""Chapter 11: what a restore would need.

Reads checkpoints without Spark, computes the contract of each, and makes it binding on the log
by pins.
"""
