"""What a broker remembers of those who fetch: their sessions."""
