"""Answers are kept once, whoever comes first."""

import pytest

from catchwater.objects.memory import MemoryStore
from catchwater.pipeline.calls.answers import Outcome
from catchwater.pipeline.calls.journal import Journal, JournalDamaged

A, B, C = ("score", b"a"), ("score", b"b"), ("price", b"c")


def answer(text: bytes) -> Outcome:
    return Outcome(text)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def journal(store: MemoryStore) -> Journal:
    return Journal(store, "calls", "card-risk")


def test_what_is_added_is_there_for_the_next_attempt(journal: Journal):
    journal.open(7, 1).add({A: answer(b"1"), B: Outcome(None, "it is down")})
    assert journal.open(7, 1).outcomes == {A: answer(b"1"), B: Outcome(None, "it is down")}
    assert journal.open(7, 2).outcomes == journal.open(8, 1).outcomes == {}


def test_a_later_attempt_adds_what_the_first_lacked(journal: Journal, store: MemoryStore):
    journal.open(7, 1).add({A: answer(b"1")})
    second = journal.open(7, 1)
    second.add({B: answer(b"2"), A: answer(b"other")})
    assert second.outcomes == journal.open(7, 1).outcomes == {A: answer(b"1"), B: answer(b"2")}
    assert len(list(store.list("calls/"))) == 2


def test_of_two_attempts_at_once_the_second_takes_the_firsts_answers(journal: Journal):
    first, second = journal.open(7, 1), journal.open(7, 1)
    first.add({A: answer(b"1"), B: answer(b"2")})
    second.add({A: answer(b"other"), C: answer(b"3")})
    expected = {A: answer(b"1"), B: answer(b"2"), C: answer(b"3")}
    assert second.outcomes == journal.open(7, 1).outcomes == expected


def test_nothing_new_writes_nothing(journal: Journal, store: MemoryStore):
    journal.open(7, 1).add({})
    assert not list(store.list(""))


def test_answers_of_epochs_that_nothing_replays_are_forgotten(journal: Journal, store: MemoryStore):
    other = Journal(store, "calls", "other")
    for each in (journal, other):
        for epoch in (8, 9, 10, 11):
            each.open(epoch, 0).add({A: answer(b"1")})
    journal.forget_before(10)
    assert [bool(journal.open(epoch, 0).outcomes) for epoch in (8, 9, 10, 11)] == [0, 0, 1, 1]
    assert other.open(8, 0).outcomes


def test_a_damaged_page_is_named_at_every_byte(journal: Journal, store: MemoryStore):
    journal.open(7, 1).add({A: answer(b"1")})
    [info] = store.list("calls/")
    whole = store.get(info.key)
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :]):
            store.put(info.key, [damaged])
            with pytest.raises(JournalDamaged, match=info.key):
                journal.open(7, 1)


def test_a_page_of_another_epoch_is_not_taken_for_this_ones(journal: Journal, store: MemoryStore):
    journal.open(7, 1).add({A: answer(b"1")})
    [info] = store.list("calls/")
    store.put(info.key.replace("7/", "8/"), [store.get(info.key)])
    with pytest.raises(JournalDamaged, match="it is of epoch 7, shard 1"):
        journal.open(8, 1)
