"""Durations as users write them: a number and a unit."""

import re

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)")


def duration_ms(text: str) -> int:
    """Milliseconds of a duration such as "500ms", "30s", "10m", "1d"; ValueError if it is none."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and ms, s, m, h, d or w")
    return int(match[1]) * _UNITS_MS[match[2]]
