"""Rehearsals, and what is made of them: what happened, held against what may happen.

Knows nothing of our own broker: histories come from any platform that speaks Kafka's protocol.
"""
