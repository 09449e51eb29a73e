"""What the broker measures of itself, and how Prometheus is shown it."""
