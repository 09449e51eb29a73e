"""What the sink holds against what it should hold. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The outcome of a demo; counts are rows or events, times are seconds."""

    events: int
    alerts: int
    """Rows in the sink that raise an alarm, each counted once."""
    rows: int
    """Different rows that should be in the sink."""
    missing: int
    """Rows that should be in the sink and are not."""
    duplicate: int
    """Rows in the sink beyond those that should be: twice, or never expected."""
    duplicates_dropped: int
    duplicates_expected: int
    late_dropped: int
    late_expected: int
    kills: int
    restore_s: float
    estimate_s: float | None
    seconds: float

    @property
    def correct(self) -> bool:
        """Nothing missing, nothing twice, and exactly what should be dropped was dropped."""
        return (
            self.missing == self.duplicate == 0
            and self.duplicates_dropped == self.duplicates_expected
            and self.late_dropped == self.late_expected
        )

    def summary(self) -> dict[str, int | float | None]:
        """What `--json` prints."""
        return {
            "events": self.events,
            "alerts": self.alerts,
            "duplicates_dropped": self.duplicates_dropped,
            "missing": self.missing,
            "duplicate": self.duplicate,
            "kills": self.kills,
            "restore_s": self.restore_s,
            "estimate_s": self.estimate_s,
            "seconds": self.seconds,
        }
