"""Outputs as typed columns: files and tables that other engines read."""
