"""Chapter 1: bytes to messages and back.

Sans-I/O: everything here turns bytes into values or values into bytes, and opens no socket but
for `client`, which is the same protocol from the other side. It relies on nothing of ours.
"""
