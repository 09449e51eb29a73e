"""The replay benchmarks' parts: records of several shapes, and Spark sessions that take turns."""
