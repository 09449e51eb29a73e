"""Incremental fetch sessions (KIP-227): what a client fetches, stored instead of sent again.

A full fetch with epoch 0 lists all partitions and may be answered with a session id. From then on
the client names what has changed and what it forgets, with the epoch that counts its requests, and
gets the partitions that have something new. An epoch that is not the expected one means that
a request or a reply was lost, and the client begins anew with a full fetch. So a session is never
needed: where there is no room for one, id 0 is answered.

Promises at most `slots` sessions and `MAX_PARTITIONS` partitions in all of them. Room is made as in
Kafka: by a session unused for two minutes, else by the smallest of those older than that, for one
that is not smaller. Beyond Kafka, a user who has more than half of what there is gives way to
others first, so that nobody has it all. The gate is asked at every fetch, so a guessed id gives
nothing away. Sessions live in memory: after a restart the answer is FETCH_SESSION_ID_NOT_FOUND.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from catchwater.clock import Clock
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import (
    FetchPartition,
    FetchReplyPartition,
    FetchReplyTopic,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)

MAX_PARTITIONS = 200_000
"""Partitions in all sessions together; about 60 MB."""
EVICTION_S = 120.0
"""Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`."""

NO_SESSION = 0
FINAL_EPOCH, FIRST_EPOCH = -1, 0
"""Of a full fetch: without a session, and for a new one."""

_LARGEST = 2**31 - 1
_UNTOLD = -1
_SEARCH_EVERY_S = 1.0

Place: TypeAlias = tuple[str | bytes, int]
"""A topic's name, or its id from version 13 on, and a partition of it."""


class SessionPartition:
    """One partition of a session."""

    __slots__ = ("high_watermark", "log_start", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = _UNTOLD
        """What the client last got; -1 also after an error, so that it hears when that is over."""
        self.log_start = _UNTOLD

    def learn(self, answer: FetchReplyPartition) -> bool:
        """Note what the client gets; whether it is news to the client."""
        has_failed = answer.error != ErrorCode.NONE
        is_news = (
            has_failed
            or bool(answer.records)
            or answer.preferred_replica >= 0
            or answer.high_watermark != self.high_watermark
            or answer.log_start != self.log_start
        )
        self.high_watermark = _UNTOLD if has_failed else answer.high_watermark
        self.log_start = answer.log_start
        return is_news


class Session:
    """What one client fetches. Partitions that had records go behind those that did not."""

    def __init__(
        self,
        session_id: int,
        partitions: dict[Place, SessionPartition],
        by_id: bool,
        now_s: float,
        owner: str,
    ) -> None:
        self.id = session_id
        self.owner = owner
        """The principal who began it."""
        self.by_id = by_id
        self.epoch = 1
        """The one that the next request must bear."""
        self.created_s = self.used_s = now_s
        self.partitions = partitions

    def update(self, topics: Sequence[FetchTopic], forgotten: Sequence[ForgottenTopic]) -> None:
        """Take over what a request adds, changes and forgets."""
        for place, new in placed(topics).items():
            partition = self.partitions.setdefault(place, new)
            partition.wanted = new.wanted
        for gone in forgotten:
            for index in gone.partitions:
                self.partitions.pop((_name(gone), index), None)

    def news(self, answers: Iterable[tuple[Place, FetchReplyPartition]]) -> list[FetchReplyTopic]:
        """Those of the answers that are news to the client, which knows them then."""
        news: list[tuple[Place, FetchReplyPartition]] = []
        for place, answer in answers:
            partition = self.partitions.get(place)
            if partition is not None and partition.learn(answer):
                news.append((place, answer))
                if answer.records:
                    self.partitions[place] = self.partitions.pop(place)
        return by_topic(news)


class FetchSessions:
    """All sessions of one broker, the one unused for longest in front."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self.partitions = 0
        """Partitions in all sessions."""
        self._search_s = 0.0
        """Before this time no session was to be found that would make room."""

    def __len__(self) -> int:
        return len(self._sessions)

    def end(self, session_id: int) -> None:
        """Forget a session, if it is there."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.partitions)

    def begin(
        self,
        places: dict[Place, SessionPartition],
        answers: Iterable[tuple[Place, FetchReplyPartition]],
        by_id: bool,
        owner: str,
    ) -> int:
        """A session of these partitions, answered so: its id, or 0 where there is no room."""
        if not places or not self._make_room(len(places), owner):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._clock.random.getrandbits(31)
        for place, answer in answers:
            places[place].learn(answer)
        session = Session(session_id, places, by_id, self._clock.monotonic_s(), owner)
        self._sessions[session_id] = session
        self.partitions += len(places)
        return session_id

    def resume(self, request: FetchRequest, by_id: bool) -> Session | ErrorCode:
        """The session of an incremental fetch, with what the request changes.

        One in which nothing is left has come to its end. Errors: FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if request.topics or request.forgotten:
            size = len(session.partitions)
            session.update(request.topics, request.forgotten)
            self.partitions += len(session.partitions) - size
            if self.partitions > MAX_PARTITIONS and len(session.partitions) > size:
                self.end(session.id)
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not session.partitions:
            self.end(session.id)
            return session
        session.epoch = next_epoch(session.epoch)
        session.used_s = self._clock.monotonic_s()
        self._sessions.move_to_end(session.id)
        return session

    def _make_room(self, size: int, owner: str) -> bool:
        """Whether there may be one more session of so many partitions."""
        if self._has_room(size, ()):
            return True
        now_s = self._clock.monotonic_s()
        if not self._sessions or now_s < self._search_s:
            return False
        going = list[Session]()
        for each in self._of_who_has_most(owner):
            going.append(each)
            if self._has_room(size, going):
                for one in going:
                    self.end(one.id)
                return True
        if len(self._sessions) < self._slots:
            return False
        victim = self._victim(size, now_s)
        if victim is None or self.partitions - len(victim.partitions) + size > MAX_PARTITIONS:
            self._search_s = now_s + _SEARCH_EVERY_S
            return False
        self.end(victim.id)
        return True

    def _has_room(self, size: int, without: Sequence[Session]) -> bool:
        freed = sum(len(each.partitions) for each in without)
        return (
            len(self._sessions) - len(without) < self._slots
            and self.partitions - freed + size <= MAX_PARTITIONS
        )

    def _of_who_has_most(self, other: str) -> list[Session]:
        """What one user has beyond half, the oldest first: it gives way to another."""
        count: Counter[str] = Counter()
        partitions: Counter[str] = Counter()
        for session in self._sessions.values():
            count[session.owner] += 1
            partitions[session.owner] += len(session.partitions)
        going = []
        for session in self._sessions.values():
            owner = session.owner
            is_most = 2 * count[owner] > self._slots or 2 * partitions[owner] > MAX_PARTITIONS
            if is_most and owner != other:
                going.append(session)
                count[owner] -= 1
                partitions[owner] -= len(session.partitions)
        return going

    def _victim(self, size: int, now_s: float) -> Session | None:
        """The session that is to go for a new one of so many partitions."""
        oldest = next(iter(self._sessions.values()))
        if now_s - oldest.used_s > EVICTION_S:
            return oldest
        settled = (s for s in self._sessions.values() if now_s - s.created_s > EVICTION_S)
        smallest = min(settled, key=lambda session: len(session.partitions), default=None)
        fits = smallest is not None and len(smallest.partitions) <= size
        return smallest if fits else None


def next_epoch(epoch: int) -> int:
    """The epoch of the request after the one with this; 0 and -1 are those of full fetches."""
    return 1 if epoch == _LARGEST else epoch + 1


def placed(topics: Sequence[FetchTopic]) -> dict[Place, SessionPartition]:
    """The partitions of a request in its order; the last of duplicates counts, as in Kafka."""
    return {
        (_name(topic), wanted.partition): SessionPartition(wanted)
        for topic in topics
        for wanted in topic.partitions
    }


def by_topic(answers: Iterable[tuple[Place, FetchReplyPartition]]) -> list[FetchReplyTopic]:
    """The answers in this order, those of one topic together as far as they follow each other."""
    topics: list[FetchReplyTopic] = []
    last: str | bytes | None = None
    partitions: list[FetchReplyPartition] = []
    for (topic, _), answer in answers:
        if topic != last:
            last, partitions = topic, []
            if isinstance(topic, str):
                topics.append(FetchReplyTopic(topic, None, partitions))
            else:
                topics.append(FetchReplyTopic(None, topic, partitions))
        partitions.append(answer)
    return topics


def _name(topic: FetchTopic | ForgottenTopic) -> str | bytes:
    return topic.name if topic.name is not None else topic.id or b""
