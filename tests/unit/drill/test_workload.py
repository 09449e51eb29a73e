"""The demo's payments: repeatable, and with one right answer however they are batched."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, astuple, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from catchwater.drill.job import MODULE, write_function
from catchwater.drill.rows import canonical
from catchwater.drill.workload import DISORDER_MS, WATERMARK_MS, Recipe, payments, totals
from catchwater.testing import Harness

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


def test_a_recipe_says_how_many_cards_there_are_and_how_skewed_they_are() -> None:
    def counts(skew: float) -> list[int]:
        recipe = Recipe(20_000, seed=3, cards=50, skew=skew, each_first=True)
        arrived = list(payments(recipe))
        assert len({payment.card for payment in arrived}) == 50
        return sorted(Counter(payment.card for payment in arrived).values())

    even, skewed = counts(0.0), counts(1.5)
    assert even[-1] < 2 * even[0]
    assert skewed[-1] > 20 * skewed[0]


@pytest.mark.parametrize("late", [0.0, 0.05])
def test_a_recipe_says_how_many_payments_come_too_late(late: float) -> None:
    recipe = Recipe(40_000, seed=3, epoch_events=1_000, late=late)
    newest = newest_before(recipe)
    too_late = sum(
        top - payment.at > WATERMARK_MS
        for top, payment in zip(newest, payments(recipe), strict=True)
    )
    assert abs(too_late / 40_000 - late) < 0.01


def test_a_shorter_recipe_is_the_beginning_of_a_longer_one() -> None:
    assert list(payments(replace(RECIPE, events=500))) == list(islice(payments(RECIPE), 500))


@pytest.fixture
def card_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The drills' function, as it is written into a drill's folder."""

    def write(**asked: int) -> Any:
        write_function(tmp_path, **asked)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, MODULE, raising=False)
        importlib.invalidate_caches()
        found = importlib.import_module(MODULE)
        monkeypatch.delitem(sys.modules, MODULE)
        return found

    return write


def test_the_drills_function_puts_out_what_the_plain_loop_says(
    card_totals: Callable[..., Any],
) -> None:
    recipe = Recipe(8_000, seed=3, epoch_events=500, cards=40, each_first=True, late=0.01)
    module = card_totals(keep_bytes=1_000)
    h = Harness(module.CardTotals)
    sent = (module.Payment(*astuple(payment)) for payment in payments(recipe))
    rows = Counter(canonical(asdict(row)) for row in h.run(sent, batch=500))
    assert rows == totals(payments(recipe))
    assert h.late > 50 and h.duplicates > 100
    kept = [len(h.state(f"c{card:05d}").kept) for card in range(40)]
    assert kept == [1_000] * 40, "what it keeps is what was asked for"


def test_the_bad_version_of_it_does_not(card_totals: Callable[..., Any]) -> None:
    module = card_totals(version=2)
    h = Harness(module.CardTotals)
    (row,) = h.send(module.Payment("c1", "1", 1_000, 2.5))
    assert row.cents == 251
