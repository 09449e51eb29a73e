"""Chapter 10, our own log: staged chunks become part of a topic in one catalog commit."""
