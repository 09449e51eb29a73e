"""A roll in miniature: chunks of a few entries, runs of a few deltas."""

from unittest.mock import patch

from catchwater.state import roll


def small_units():
    """Let chunks and runs be so small that a test's few entries make many of them."""
    return patch.multiple(
        roll, LEAST_UNIT=400, LARGEST_UNIT=900, _UNITS=8, _RUN=4, _SLACK_ENTRIES=3, _UNITS_AT_ONCE=2
    )
