"""Scores, cases, and what is no payment."""

from examples.fraud_routing import CASES_AN_HOUR, CardScore, Payment, ReviewDesk, Score

from catchwater.testing import Harness

USUAL = Payment("c1", "1", 1_000, "NL", 2_000)


def scores(*payments: Payment) -> list[int]:
    return [each.score for each in Harness(CardScore).send(*payments)]


def test_the_usual_is_not_suspicious() -> None:
    assert scores(USUAL, Payment("c1", "2", 2_000, "NL", 2_500)) == [0, 0]


def test_elsewhere_and_far_more_than_ever_is() -> None:
    assert scores(USUAL, Payment("c1", "2", 2_000, "PT", 2_000)) == [0, 40]
    assert scores(USUAL, Payment("c1", "2", 2_000, "PT", 9_000)) == [0, 100]


def test_a_team_gets_no_more_than_it_can_look_at() -> None:
    h = Harness(ReviewDesk)
    suspicious = [Score("c1", str(i), i, "NL", 9_000, 100) for i in range(CASES_AN_HOUR + 2)]
    declined = [case.declined for case in h.send(*suspicious, Score("c1", "x", 0, "NL", 10, 0))]
    assert declined == [False] * CASES_AN_HOUR + [True, True]
    h.advance_time("1h")
    (case,) = h.send(Score("c1", "y", 3_600_000, "NL", 9_000, 60))
    assert not case.declined


def test_what_is_no_payment_is_a_dead_letter() -> None:
    h = Harness(CardScore)
    assert h.send(b'{"card":"c1","id":"1","at":1000,"country":"NL","cents":0}', b"nonsense") == []
    free, nonsense = h.poisoned
    assert "a payment of 0 cents is none" in free.error
    assert nonsense.value == b"nonsense"


def test_scores_survive_a_crash() -> None:
    h = Harness(CardScore)
    for i in range(20):
        h.send(Payment(f"c{i % 3}", str(i), i * 1_000, "NL", 100 * i + 1))
    h.crash_and_restore(at=7)
    h.check_replay()
