"""What becomes of records later: packed, compacted, retained, deleted."""
