"""The merchant is there, comes late, or never comes."""

from examples.enrichment import CompletePayment, CompletePayments, Merchant, Payment

from catchwater.testing import Harness

BAKER = Merchant("Crumb & Co", "bakery", "NL")


def complete(payment: Payment, merchant: Merchant) -> CompletePayment:
    return CompletePayment(
        payment.card, payment.id, payment.at, payment.cents, payment.merchant,
        merchant.name, merchant.category, merchant.country,
    )  # fmt: skip


def test_a_payment_is_completed_with_its_merchant() -> None:
    h = Harness(CompletePayments)
    h.table("merchants", {"m1": BAKER})
    payment = Payment("c1", "1", 1_000, "m1", 350)
    assert h.send(payment, payment) == [complete(payment, BAKER)]


def test_a_payment_waits_for_a_merchant_that_comes_later() -> None:
    h = Harness(CompletePayments)
    payment = Payment("c1", "1", 1_000, "m1", 350)
    assert h.send(payment) == []
    h.table("merchants", {"m1": BAKER})
    assert h.advance_time("1m") == [complete(payment, BAKER)]
    h.crash_and_restore()
    h.check_replay()


def test_after_five_minutes_it_goes_on_alone() -> None:
    h = Harness(CompletePayments)
    payment = Payment("c1", "1", 1_000, "m1", 350)
    h.send(payment)
    assert h.advance_watermark(300_999) == []
    assert h.advance_watermark(301_000) == [complete(payment, Merchant("", "", ""))]
