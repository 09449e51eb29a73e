"""Three brokers, their clients and their faults, seed by seed.

`make sim SEEDS=500` runs more seeds; `SEED=7 python -m pytest tests/simulation/test_simulation.py
-k one_seed` runs a single one again, and HISTORY=file keeps its history for `catchwater check`.
"""

import base64
import os
from pathlib import Path

import pytest
from tests.simulation.run import FAULTY_S, simulate

from catchwater.objects.open import KEYS

SEEDS = int(os.environ.get("SEEDS", "3"))
SEED = int(os.environ.get("SEED", "0"))
HISTORY = os.environ.get("HISTORY", "")


def cuts_off(seed: int) -> bool:
    """In every second run single brokers lose their way to the catalog or the store, too."""
    return seed % 2 == 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_fails_nothing_acknowledged_is_lost_and_all_goes_on_after(seed: int) -> None:
    outcome = simulate(seed, cuts_off=cuts_off(seed))
    assert outcome.is_good, outcome.explained()


@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS, 3))
def test_with_keys_it_is_so_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_LOG", f"k = {base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv(KEYS, "env:OF_THE_LOG")
    outcome = simulate(seed, cuts_off=cuts_off(seed))
    assert outcome.is_good, outcome.explained()


FOUND = [
    # A broker that had been paused for 11 s read a compacted topic up to the end it knew; nothing
    # before that was left, and it called the offset lost.
    228,
]
"""Seeds that failed once."""


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_failed_once_holds(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.is_good, outcome.explained()


def test_one_seed() -> None:
    faulty_s = FAULTY_S if "SEED" in os.environ else 4.0
    outcome = simulate(SEED, faulty_s=faulty_s, cuts_off=cuts_off(SEED))
    if HISTORY:
        Path(HISTORY).write_bytes(outcome.history)
    assert outcome.is_good, outcome.explained()


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, second = simulate(11, faulty_s=6.0), simulate(11, faulty_s=6.0)
    assert first.history == second.history
    assert first.faults == second.faults
    assert first.report.operations > 500
