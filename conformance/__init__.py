"""Every client's own view of the broker: the same named steps through eight Kafka clients.

`python -m conformance` (`make conformance`) takes the clients through the [steps](steps.py): each
is a small program in its own language under `clients/`, which is told a bootstrap address, a
prefix for its names and the steps, and prints one line a step. [programs](programs.py) gets and
builds them, [run](run.py) drives them, [report](report.py) says what it came to.
"""
