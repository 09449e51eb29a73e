"""Chapter 3: from accepted batches to immutable segments, and back.

Batches with intact records are gathered into a chunk, made durable by the WAL, given their offsets
by one pure sequencer, acknowledged, and later packed into per-partition segments.
"""
