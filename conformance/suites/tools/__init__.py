"""Kafka's command line tools, taken through cases by [command_line](../command_line.py)."""
