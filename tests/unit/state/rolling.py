"""A roll in miniature, chunks of a few entries and runs of a few deltas; and a store that fails."""

from unittest.mock import patch

from catchwater.objects.base import StoreUnavailable
from catchwater.state import roll


def small_units():
    """Let chunks and runs be so small that a test's few entries make many of them."""
    return patch.multiple(
        roll, LEAST_UNIT=400, LARGEST_UNIT=900, _UNITS=8, _RUN=4, _SLACK_ENTRIES=3, _UNITS_AT_ONCE=2
    )


class Failing:
    """A store whose n-th write fails, done or not; then it works again."""

    def __init__(self, store):
        self._store = store
        self.fail_at = None
        self.done = False

    def put(self, key, parts):
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                if self.done:
                    self._store.put(key, parts)
                raise StoreUnavailable(f"{key}: no answer")
        return self._store.put(key, parts)

    def __getattr__(self, name):
        return getattr(self._store, name)
