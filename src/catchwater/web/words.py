"""Numbers, sizes, times and durations as people read them: short, aligned, with their unit."""

from datetime import UTC, datetime

from catchwater.verdicts import spelled_s

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DASH = "–"
"""Shown for what does not apply; what is not known is said in words."""


def count(number: float | None) -> str:
    """An exact count, in groups of three digits."""
    if number is None:
        return DASH
    if abs(number) < 10 and number != int(number):
        return f"{number:.1f}"
    return f"{round(number):,}".replace(",", "\u202f")


def rate(per_s: float | None, unit: str = "") -> str:
    """A rate per second, rounded to what can be read at a glance."""
    if per_s is None:
        return DASH
    space = f"\u202f{unit}" if unit else ""
    for sign, many in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(per_s) >= many:
            return f"{per_s / many:.1f}{sign}{space}/s"
    return f"{per_s:.0f}{space}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}{space}/s"


def size(size_bytes: float | None) -> str:
    """Bytes in the largest unit of 1024 that leaves at least one."""
    if size_bytes is None:
        return DASH
    unit = 0
    while abs(size_bytes) >= 1024 and unit < len(_UNITS) - 1:
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.1f} {_UNITS[unit]}" if unit else f"{size_bytes:.0f} B"


def span(seconds: float | None) -> str:
    """How long something took or lasts; below a second in milliseconds."""
    if seconds is None:
        return DASH
    if seconds >= 0.9995:
        return spelled_s(seconds)
    ms = max(0.0, seconds) * 1000
    return f"{ms:.0f} ms" if ms >= 10 or ms == int(ms) else f"{ms:.1f} ms"


def ago(at_ms: float | None, now_ms: float) -> str:
    """How long ago it was; nothing for what never was."""
    if at_ms is None or at_ms < 0:
        return "never"
    return f"{span(max(0.0, now_ms - at_ms) / 1000)} ago"


def moment(at_ms: float | None) -> str:
    """A time in UTC, to the second."""
    if at_ms is None or at_ms < 0:
        return DASH
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return DASH


def plural(number: int, one: str, many: str = "") -> str:
    """1 topic, 2 topics."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
