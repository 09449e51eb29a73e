"""Test suites that others wrote, run against the broker: Kafka's own tools, its clients' tests.

`python -m conformance.suites` (`make suites`) starts a fresh broker a suite and takes the suite's
[outcomes](outcome.py) as they come; each module beside this one that has a `run` is a suite, which
gets what it runs from its language's registry by that language's own tool. A failure is excused by
a line of [expected.toml](expected.toml), which [expected](expected.py) reads.
"""
