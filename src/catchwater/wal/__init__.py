"""Chapter 4: durable before acknowledged.

A write-ahead log takes byte strings (chunks, though it never looks inside), makes them durable
in order, and gives them back after a crash. It reports damage by file and byte range.
"""
