"""A pipeline from its file to a running query, and back."""
