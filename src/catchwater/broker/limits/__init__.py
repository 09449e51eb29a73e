"""What the ports let one client, and all together, take of a broker.

`descriptors` says how many connections the limit of open files leaves room for, `newcomers` which
of them gives way at a full port, `rate` how many may come in a second, `refusals` how many lines
may be written about those that were closed; `large` keeps what is large from holding up the
others. Sizes and deadlines stand in `broker/server.py`, where bytes come in.
"""
