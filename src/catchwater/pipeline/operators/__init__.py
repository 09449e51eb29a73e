"""Operators: windows, joins, patterns, distinct events, as classes to derive a function from."""
