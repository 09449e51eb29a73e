"""Durations are texts with a unit."""

import pytest

from catchwater.pipeline.functions.durations import duration_ms


def test_durations_have_units():
    assert [duration_ms(text) for text in ("500ms", "30s", "10m", "2h", "1d", "1w")] == [
        500, 30_000, 600_000, 7_200_000, 86_400_000, 604_800_000,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'5' is not a duration"):
        duration_ms("5")
