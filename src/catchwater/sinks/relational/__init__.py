"""Chapter 10, tables: rows and the epoch's mark in one transaction, in SQLite or PostgreSQL."""
