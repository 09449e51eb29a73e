"""What is counted at every request, so cheaply that it is not felt; Prometheus reads it when asked.

The client library takes a lock and a few calls for each observation. These are written by the event
loop's thread alone, and whoever reads them may see a sum that is one observation ahead.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of every histogram of times."""
_BOUNDS = [*map(str, SECONDS), "+Inf"]


class Total(Collector):
    """A counter: add to `total`."""

    def __init__(self, name: str, text: str) -> None:
        self.total = 0
        self._name = name
        self._text = text

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What Prometheus asks for."""
        yield CounterMetricFamily(self._name, self._text, value=self.total)


class Times:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum_s += seconds


class Histogram(Collector):
    """Times by one label, or the only ones if it has none."""

    def __init__(self, name: str, text: str, label: str | None = None) -> None:
        self._name = name
        self._text = text
        self._labels = [] if label is None else [label]
        self._times: dict[str, Times] = {}

    def of(self, value: str = "") -> Times:
        """The times of this value of the label."""
        return self._times.setdefault(value, Times())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What Prometheus asks for."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for value, times in self._times.items():
            buckets = list(zip(_BOUNDS, accumulate(times.counts), strict=True))
            family.add_metric([value] if self._labels else [], buckets, times.sum_s)
        yield family
