"""From an offset to its bytes: the tail in memory, history in storage."""
