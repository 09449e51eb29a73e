"""What keeps a pipeline running: a process that starts its driver, and starts it again."""
