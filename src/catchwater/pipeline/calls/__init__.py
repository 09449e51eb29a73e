"""A function's calls to external systems: bounded, and with the same answers on every replay."""
