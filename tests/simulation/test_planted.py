"""Every bug that is planted is caught within a few seeds, by the anomaly it stands for."""

import pytest
from tests.simulation.planted import BUGS, Bug
from tests.simulation.run import simulate

from catchwater.drill.check import NEVER

FAULTY_S = 8.0
TRIES = 6


def caught_by(bug: Bug, seed: int) -> set[str]:
    """Which of the bug's signs a run with it shows."""
    with bug.plant():
        outcome = simulate(seed, faulty_s=FAULTY_S, climate=bug.climate, signs=bug.shows)
    return outcome.shown(bug.shows)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    assert any(caught_by(bug, seed) for seed in range(bug.seed, bug.seed + TRIES)), bug.name


def test_the_bugs_stand_for_half_of_the_anomalies() -> None:
    """docs/testing.md names them: what it claims is what is planted here."""
    signs = {sign for bug in BUGS for sign in bug.shows}
    # The others need a broker that breaks what its catalog's tables make impossible, or a client
    # that nobody here is; the checker's own tests plant each of the sixteen in a history.
    assert signs & set(NEVER) == {
        "lost-write",
        "unseen",
        "duplicate",
        "inconsistent-offsets",
        "G1a",
        "poll-skip",
        "hw-regression",
        "torn-contract",
    }
    assert len(NEVER) == 16
