"""What each of the small jobs puts out."""

from examples.small_jobs import (
    Click,
    Counts,
    Customer,
    Line,
    Named,
    NamedPayments,
    Once,
    Order,
    Paid,
    PaidOrders,
    Payment,
    Visits,
    Word,
    counted,
    named,
    once,
    paid,
    visits,
    words,
)

from catchwater.testing import Harness

HOUR_MS = 3_600_000


def test_words_are_counted_by_the_hour() -> None:
    split, counts = Harness(words), Harness(Counts)
    found = split.send(Line("to be or", 1_000), Line("not to be", 2_000))
    assert found[0] == Word("to", 1_000)
    counts.send(*found)
    hour = counts.advance_watermark(HOUR_MS)
    assert {each.word: each.n for each in hour} == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert {(each.start, each.end) for each in hour} == {(0, HOUR_MS)}


def test_a_payment_passes_once_a_day() -> None:
    harness, payment = Harness(Once), Payment("o1", "p1", 1_000, "ada", 5)
    assert harness.send(payment, payment) == [payment] and harness.duplicates == 1


def test_a_visit_ends_half_an_hour_after_its_last_page() -> None:
    harness = Harness(Visits)
    harness.send(Click("ada", 1_000, "/"), Click("ada", 61_000, "/a"))
    assert harness.advance_time("1h") == [Visits.Result("ada", 1_000, 61_000 + HOUR_MS // 2, 2)]


def test_an_order_meets_its_payment_in_either_order() -> None:
    order, payment = Order("o1", 1_000, "ada"), Payment("o1", "p1", 5_000, "ada", 7)
    assert Harness(PaidOrders).send(order, payment) == [Paid("o1", 4_000)]
    assert Harness(PaidOrders).send(payment, order) == [Paid("o1", 4_000)]
    late = Payment("o1", "p2", 601_001, "ada", 7)
    assert Harness(PaidOrders).send(order, late) == []


def test_a_payment_gets_its_customers_name() -> None:
    harness = Harness(NamedPayments)
    harness.table("customers", {"ada": Customer("Ada")})
    assert harness.send(
        Payment("o1", "p1", 5_000, "ada", 7), Payment("o2", "p2", 5_000, "bob", 8)
    ) == [Named("p1", 7, "Ada"), Named("p2", 8, "")]


def test_all_of_them_could_run() -> None:
    for pipeline in (counted, once, visits, paid, named):
        assert pipeline.plan(offline=True).ok
