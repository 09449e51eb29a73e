"""The demo's payments: repeatable, and with one right answer however they are batched."""

from collections import Counter

import pytest

from catchwater.drill.workload import DISORDER_MS, WATERMARK_MS, Recipe, payments

RECIPE = Recipe(events=60_000, seed=7, epoch_events=2_000)


def newest_before(recipe: Recipe) -> list[int]:
    """The newest event time among the arrivals up to and including each."""
    newest = 0
    return [newest := max(newest, payment.at) for payment in payments(recipe)]


def test_the_same_seed_gives_the_same_payments() -> None:
    assert list(payments(RECIPE)) == list(payments(RECIPE))


def test_another_seed_gives_other_payments() -> None:
    other = Recipe(RECIPE.events, seed=8, epoch_events=RECIPE.epoch_events)
    assert list(payments(RECIPE)) != list(payments(other))


@pytest.mark.parametrize("events", [0, 1, 17, 1_000])
def test_exactly_as_many_payments_come_as_were_asked_for(events: int) -> None:
    assert sum(1 for _ in payments(Recipe(events))) == events


def test_a_payment_is_a_straggler_or_well_within_the_watermark() -> None:
    newest = newest_before(RECIPE)
    behind = [top - payment.at for top, payment in zip(newest, payments(RECIPE), strict=True)]
    assert not [ms for ms in behind if DISORDER_MS + 1_000 < ms <= WATERMARK_MS]
    assert any(0 < ms <= DISORDER_MS for ms in behind)


def test_a_straggler_is_late_even_if_the_two_epochs_before_it_have_not_been_seen() -> None:
    newest = newest_before(RECIPE)
    stragglers = [
        (arrival, payment)
        for arrival, payment in enumerate(payments(RECIPE))
        if newest[arrival] - payment.at > WATERMARK_MS
    ]
    assert stragglers
    for arrival, payment in stragglers:
        seen_surely = newest[arrival - 2 * RECIPE.epoch_events]
        assert payment.at < seen_surely - WATERMARK_MS


def test_about_three_in_a_hundred_payments_are_sent_twice_and_unchanged() -> None:
    counts = Counter(payment.id for payment in payments(RECIPE))
    different = {(p.card, p.id, p.at, p.amount) for p in payments(RECIPE)}
    repeats = RECIPE.events - len(counts)
    assert len(different) == len(counts)
    assert 0.02 < repeats / RECIPE.events < 0.04


def test_a_few_cards_make_most_of_the_payments() -> None:
    cards = Counter(payment.card for payment in payments(RECIPE))
    hundred = sum(count for _, count in cards.most_common(100))
    assert len(cards) > 5_000
    assert hundred > RECIPE.events / 3
