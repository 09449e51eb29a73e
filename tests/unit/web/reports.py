"""A report of a pipeline, as one that runs would send it, with what a test changes."""

from typing import Any

from catchwater.verdicts import (
    Compared,
    Freshness,
    Lag,
    PipelineStatus,
    Restored,
    Verdict,
)

OK = Verdict("ok", "All is well.", "catchwater pipeline status cards.toml")
NOW_MS = 1_790_000_000_000


def report(name: str = "card-risk", **changes: Any) -> PipelineStatus:
    told: dict[str, Any] = {
        "name": name,
        "state": "running",
        "correct": OK,
        "recoverable": OK,
        "fresh": OK,
        "reported_ms": NOW_MS - 800,
        "checkpoint": "/var/lib/cards/checkpoint",
        "lag": Lag(120, 2.5),
        "freshness": Freshness(45.0, True, 2.5, 9.0, 1.2, None, 0.7),
        "committed_epoch": 812,
        "planned_epoch": 813,
        "last_finished_ms": NOW_MS - 9_000,
        "restorable": [810, 811, 812],
        "watermark_ms": NOW_MS - 34_000,
        "process": 4211,
        "versions": {"card-risk": 2},
        "rate": {"in_per_s": 8100.2, "out_per_s": 31.4, "over_s": 24.0},
        "operator": {
            "keys": 2_100_000, "state_bytes": 3_328_599_654, "operator_p50_ms": 0.4,
            "operator_p99_ms": 3.1,
        },
        "functions": [
            {
                "function": "card-risk", "events": 105_300, "outputs": 412, "late": 3,
                "duplicates": 117, "poisoned": 0, "timers": 80, "keys": 2_100_000,
                "state_bytes": 3_328_599_654, "operator_p50_ms": 0.4, "operator_p99_ms": 3.1,
            }
        ],
        "sinks": [
            {"sink": "alerts", "target": "alerts", "epoch": 812, "records": 412,
             "offsets": {"0": 3100}, "commit_ms": 31.0}
        ],
        "compared": [Compared("alerts", NOW_MS - 12_000, 12_441, last_epoch=812)],
        "recent_epochs": [
            {
                "epoch": epoch, "events": 8_100, "outputs": 31, "late": 0, "duplicates": 9,
                "poisoned": 0, "delta_bytes": 14 << 20, "restore_s": 0.0,
                "finished_ms": NOW_MS - (813 - epoch) * 2_000, "source_ms": 120.0,
                "operator_ms": 610.2, "sinks_ms": 88.1, "commit_ms": 41.0, "total_ms": 859.3,
            }
            for epoch in range(806, 813)
        ],
        "checks": [
            {"verdict": "pass", "subject": "restore", "message": "130.0 s of 600 s"}
        ],
        "restore": {
            "checkpoint": 812, "seconds": 130.0, "low_s": 110.0, "high_s": 160.0, "samples": 4,
            "infrastructure_s": 21.0, "application_s": 109.0, "input_per_s": 8100.0,
            "capacity_per_s": 22_000.0, "recovery_point_s": 9.1, "max_restore_s": 600.0,
            "max_replay_s": 60.0, "budgets": [],
        },
        "restores": [
            Restored(0, 190.0, None),
            Restored(NOW_MS - 3_600_000, 118.0, 125.0, 3.0, 14.0, 20.0, 81.0),
        ],
    }  # fmt: skip
    return PipelineStatus(**(told | changes))
