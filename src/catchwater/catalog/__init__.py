"""Chapter 6: which runs of records exist, and where they lie.

The SQL tables that say which runs exist and in which order, the committed group offsets, pins
and sink epochs: `base.py` has the operations, `queries.sql` their statements.
"""
