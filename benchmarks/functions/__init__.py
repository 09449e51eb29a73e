"""One keyed function, written for Catchwater and for what else a Python user would pick.

Every contestant reads the same topic of the same Apache Kafka (JSON payments keyed by card), keeps
one small state per card, and writes an alert for a large payment soon after a tiny one. What is
measured is seen from outside: when Kafka got the alerts, and what the process tree cost.
"""
