"""Chapter 5: immutable objects: put, put if absent, get a range, list, delete."""
