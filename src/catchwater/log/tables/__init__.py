"""Topics as Iceberg tables: their settings, their rows, and commits that say where they stand."""
