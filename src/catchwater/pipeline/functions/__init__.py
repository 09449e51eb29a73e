"""What a user writes: declared, checked, encoded."""
