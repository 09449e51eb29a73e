"""What those who ask may use of the log's storage, in bytes per second."""
