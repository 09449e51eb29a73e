"""`catchwater config check`: a configuration file read as its user would read it."""
