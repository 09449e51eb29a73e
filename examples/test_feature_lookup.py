"""Payments are judged by the features that the store had, again also by those."""

from examples.feature_lookup import Features, Judged, JudgedPayments, Payment

from catchwater.testing import Harness

KNOWN = {"c1": Features(1_000.0, 5_000), "c2": Features(0.0, 0)}


def test_a_payment_is_held_against_the_mean_of_its_card() -> None:
    h = Harness(JudgedPayments)
    h.answer("features", KNOWN.get)
    payments = [Payment(card, str(n), n, 2_500) for n, card in enumerate(["c1", "c1", "c2", "c3"])]
    assert h.send(*payments) == [
        Judged("c1", "0", 2.5, 0),
        Judged("c1", "1", 2.5, 1),
        Judged("c2", "2", None, 0),
        Judged("c3", "3", None, 0),
    ]


def test_a_replay_judges_by_the_features_that_were_there() -> None:
    h = Harness(JudgedPayments)
    h.answer("features", KNOWN.get)
    h.send(Payment("c1", "1", 1, 500))
    h.answer("features", lambda card: Features(1.0, 1))
    h.send(Payment("c1", "2", 2, 500))
    h.crash_and_restore(at=1)
    h.check_replay()
