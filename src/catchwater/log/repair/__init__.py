"""A catalog backed up, checked against the bytes it names, and made again from them."""
