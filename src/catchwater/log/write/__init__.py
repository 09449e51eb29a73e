"""From accepted batches to durable, numbered and acknowledged ones."""
