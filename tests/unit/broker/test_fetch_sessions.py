"""Fetch sessions: what is kept, what is told, and how room is made (KIP-227)."""

import pytest
from msgspec import structs

from catchwater.broker import fetch_sessions as module
from catchwater.broker.fetch_sessions import (
    EVICTION_S,
    FetchSessions,
    Session,
    by_topic,
    next_epoch,
    placed,
)
from catchwater.clock import ManualClock
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import (
    FetchPartition,
    FetchReplyPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)


def topics(*places: tuple[str, int], offset: int = 0) -> list[FetchTopic]:
    return [FetchTopic(t, None, [FetchPartition(i, offset, 100, -1)]) for t, i in places]


def request(session_id: int, epoch: int, wanted=(), forgotten=()) -> FetchRequest:
    gone = [ForgottenTopic(topic, None, [index]) for topic, index in forgotten]
    return FetchRequest(-1, 0, 0, 100, 0, session_id, epoch, list(wanted), gone, "")


def answer(index: int, high: int = 0, records: bytes = b"", **changes) -> FetchReplyPartition:
    given = FetchReplyPartition(index, ErrorCode.NONE, high, high, 0, [records] if records else ())
    return structs.replace(given, **changes)


def begin(
    sessions: FetchSessions, count: int, by_id: bool = False, owner: str = "User:ANONYMOUS"
) -> int:
    places = placed(topics(*(("t", index) for index in range(count))))
    return sessions.begin(places, [(place, answer(place[1])) for place in places], by_id, owner)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def resumed(sessions: FetchSessions, session_id: int, epoch: int, *changes) -> Session:
    session = sessions.resume(request(session_id, epoch, *changes), by_id=False)
    assert isinstance(session, Session)
    return session


def test_epochs_count_requests_and_wrap_past_those_of_full_fetches(clock) -> None:
    sessions = FetchSessions(1, clock)
    session_id = begin(sessions, 1)
    assert session_id > 0
    for epoch in (1, 2, 3):
        assert resumed(sessions, session_id, epoch).epoch == epoch + 1
    for epoch in (3, 5, -7):
        refused = sessions.resume(request(session_id, epoch), by_id=False)
        assert refused is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    other = sessions.resume(request(session_id + 1, 4), by_id=False)
    assert other is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    ids = sessions.resume(request(session_id, 4), by_id=True)
    assert ids is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert next_epoch(2**31 - 1) == 1


def test_partitions_are_added_changed_and_forgotten_and_the_last_forgotten_ends_it(clock) -> None:
    sessions = FetchSessions(1, clock)
    session_id = begin(sessions, 1)
    session = resumed(sessions, session_id, 1, topics(("u", 3)))
    assert list(session.partitions) == [("t", 0), ("u", 3)]
    session = resumed(sessions, session_id, 2, topics(("t", 0), offset=7), [("u", 3)])
    assert {p: k.wanted.offset for p, k in session.partitions.items()} == {("t", 0): 7}
    assert not resumed(sessions, session_id, 3, (), [("t", 0), ("t", 9)]).partitions
    assert (len(sessions), sessions.partitions) == (0, 0)


def test_only_news_is_told_and_what_had_records_goes_behind(clock) -> None:
    sessions = FetchSessions(1, clock)
    session = resumed(sessions, begin(sessions, 3), 1)

    def in_reply(*answers: FetchReplyPartition) -> list[int]:
        news = session.news((("t", a.partition), a) for a in answers)
        return [partition.partition for topic in news for partition in topic.partitions]

    assert in_reply(answer(0), answer(1), answer(2)) == []
    assert in_reply(answer(0, records=b"r"), answer(1, 5), answer(2, log_start=1)) == [
        0,
        1,
        2,
    ]
    assert [index for _, index in session.partitions] == [1, 2, 0]
    assert in_reply(answer(1, 5), answer(2, log_start=1)) == []
    assert in_reply(answer(1, 5, preferred_replica=3)) == [1]
    assert in_reply(answer(1, 5, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) == [1]
    assert in_reply(answer(1, 5)) == [1], "that the error is gone is news"
    assert in_reply(answer(1, 5)) == []


def test_where_there_is_no_room_there_is_no_session(clock) -> None:
    sessions = FetchSessions(2, clock)
    assert begin(sessions, 0) == 0
    first, second = begin(sessions, 4), begin(sessions, 2)
    assert begin(sessions, 9) == 0, "both are young"
    clock.advance(int(EVICTION_S * 1000) + 1)
    resumed(sessions, first, 1), resumed(sessions, second, 1)
    assert begin(sessions, 1) == 0, "it is smaller than either"
    clock.advance(1000)
    assert begin(sessions, 2) > 0
    assert isinstance(sessions.resume(request(first, 2), by_id=False), Session)
    assert sessions.resume(request(second, 2), by_id=False) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    clock.advance(int(EVICTION_S * 1000) + 1)
    assert begin(sessions, 1) > 0, "both are stale, whatever their size"
    assert (len(sessions), sessions.partitions) == (2, 5)
    assert begin(FetchSessions(0, clock), 1) == 0


def test_who_has_more_than_half_gives_way_to_others(clock) -> None:
    sessions = FetchSessions(8, clock)
    greedy = [begin(sessions, 1, owner="User:greedy") for _ in range(9)]
    assert all(greedy[:8]) and not greedy[8], "nobody else has asked for any"
    others = []
    for _ in range(5):
        clock.advance(1000)
        others.append(begin(sessions, 1, owner="User:other"))
    assert all(others[:4]) and not others[4], "half is the greedy one's"
    clock.advance(1000)
    assert not begin(sessions, 1, owner="User:greedy")
    gone, kept = (sessions.resume(request(each, 1), by_id=False) for each in (greedy[3], greedy[4]))
    assert gone is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(kept, Session)


def test_who_has_more_than_half_of_the_partitions_gives_way_to_others(clock, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 10)
    sessions = FetchSessions(100, clock)
    first, second = (begin(sessions, size, owner="User:greedy") for size in (4, 6))
    assert begin(sessions, 4, owner="User:other")
    assert sessions.resume(request(first, 1), by_id=False) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(sessions.resume(request(second, 1), by_id=False), Session)
    assert not begin(sessions, 1, owner="User:greedy")


def test_nobody_gives_way_to_a_session_for_which_there_would_be_no_room_all_the_same(
    clock, monkeypatch
) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 10)
    sessions = FetchSessions(100, clock)
    held = [begin(sessions, size, owner="User:greedy") for size in (3, 4, 3)]
    assert not begin(sessions, 9, owner="User:other")
    assert all(isinstance(sessions.resume(request(e, 1), by_id=False), Session) for e in held)


def test_all_sessions_together_keep_so_many_partitions(clock, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 10)
    sessions = FetchSessions(5, clock)
    session_id = begin(sessions, 8)
    assert begin(sessions, 3) == 0
    assert begin(sessions, 2) > 0
    grown = sessions.resume(request(session_id, 1, topics(("u", 0))), by_id=False)
    assert grown is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partitions == 2


def test_the_last_of_duplicates_counts_and_neighbours_share_a_topic() -> None:
    places = placed([*topics(("t", 0)), *topics(("t", 0), offset=5)])
    assert [(place, kept.wanted.offset) for place, kept in places.items()] == [(("t", 0), 5)]
    told = [
        (("a", 0), answer(0)),
        (("a", 1), answer(1)),
        ((b"i", 0), answer(0)),
        (("a", 2), answer(2)),
    ]
    found = [(t.name, t.id, [p.partition for p in t.partitions]) for t in by_topic(told)]
    assert found == [("a", None, [0, 1]), (None, b"i", [0]), ("a", None, [2])]
