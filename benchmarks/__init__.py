"""One script per claim: each runs ours and a named peer in turn and prints the ratio."""
