"""The clients' programs: one a library, in the library's language."""
