"""The pipeline inside Spark: the packed source, the shard in a stateful operator, their settings.

What happens to an event is decided one folder up, without Spark; here it is only carried there.
"""
