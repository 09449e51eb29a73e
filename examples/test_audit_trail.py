"""Entries are numbered and chained, whatever happens on the way."""

from examples.audit_trail import AuditTrail, Change, digest_of

from catchwater.testing import Harness

OPENED = Change("a1", "1", 1_000, "ada", "opened")
LIMITED = Change("a1", "2", 2_000, "bob", "limit", "500")


def test_each_entry_holds_the_digest_of_the_one_before() -> None:
    h = Harness(AuditTrail)
    first, second = h.send(OPENED, LIMITED, LIMITED)
    assert (first.number, first.previous, first.digest) == (1, "", digest_of("", OPENED))
    assert (second.number, second.previous) == (2, first.digest)
    assert second.digest == digest_of(first.digest, LIMITED)


def test_a_late_change_is_appended_like_any_other() -> None:
    h = Harness(AuditTrail)
    h.send(LIMITED)
    h.advance_time("1d")
    assert [entry.number for entry in h.send(OPENED)] == [2]


def test_a_crash_leaves_no_gap() -> None:
    h = Harness(AuditTrail)
    h.send(OPENED)
    h.send(LIMITED)
    h.crash_and_restore(at=1)
    assert [entry.number for entry in h.send(Change("a1", "3", 3_000, "eve", "closed"))] == [3]
    h.check_replay()
