"""Chapter 10, kinds of sinks: one file each, named as the kind, with its `KIND`."""
