"""Apache Kafka and our broker asked the same, their replies compared field by field.

`python -m conformance.differ` (`make differences`). The cases ([reading](reading.py),
[writing](writing.py), [grouping](grouping.py), [administering](administering.py)) ask one API each,
in every version that both serve, through a [talk](talk.py); [requests](requests.py) makes the
messages, [plain](plain.py) takes out of the replies what must differ (ids, addresses, times),
[compare](compare.py) finds what differs, and `expected.toml` says which of it is meant and why.
"""
