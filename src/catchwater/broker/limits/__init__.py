"""What the Kafka port lets one client, and all together, take of a broker.

`rate` says how many connections may come in a second, `refusals` how many lines may be written
about those that were closed, `large` keeps what is large from holding up the others. Sizes and
deadlines stand in `broker/server.py`, where bytes come in.
"""
