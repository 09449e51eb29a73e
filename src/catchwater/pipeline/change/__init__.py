"""Changing a pipeline that has state: another version, the one before, another place or size."""
