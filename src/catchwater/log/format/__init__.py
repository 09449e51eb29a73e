"""Bytes on disk: batches as they lie there, chunks, segments."""
