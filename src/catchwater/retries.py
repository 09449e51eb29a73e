"""How often something was tried again that had failed for the moment, by what it was.

Counted where the retries are, in layers that know nothing of each other, and shown by brokers and
pipelines as `catchwater_retries_total`. Of this process.
"""

import threading
from collections import Counter
from collections.abc import Mapping

COMPONENTS = ("catalog", "control", "kafka", "object_store", "sink")

_counts: Counter[str] = Counter()
_lock = threading.Lock()


def count(component: str) -> None:
    """Something of this kind is tried again."""
    assert component in COMPONENTS
    with _lock:
        _counts[component] += 1


def counts() -> Mapping[str, int]:
    """Component → retries so far, also of those without any."""
    with _lock:
        return {each: _counts[each] for each in COMPONENTS}
