"""Chapter 10, lakes: outputs as typed columns, in files and tables that other engines read."""
