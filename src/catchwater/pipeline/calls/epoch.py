"""The answers for one shard's epoch: those that are kept, then the endpoints, then handlers.

Nothing reaches a handler that is not in the journal. So however often an epoch is run again, and
by whomever, its handlers meet the same answers; an endpoint is asked again only what no earlier
attempt lived to write down, or what it failed to answer while `on_failure` is "fail".
"""

from collections.abc import Iterable, Mapping
from typing import Any

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.calls.answers import (
    Answers,
    BoundCall,
    CallFailed,
    Key,
    Outcome,
    questions,
)
from catchwater.pipeline.calls.ask import Caller
from catchwater.pipeline.calls.journal import Journal
from catchwater.recovery.ledger import CallEpoch


class Calls:
    """What one function asks from this process; kept as long as the process."""

    def __init__(
        self, calls: Mapping[str, BoundCall], journal: Journal, clock: Clock = SYSTEM
    ) -> None:
        self._calls = calls
        self._journal = journal
        self._caller = Caller(calls, clock)

    def answers(
        self, epoch: int, shard: int, events: Iterable[Any]
    ) -> tuple[Answers, dict[str, CallEpoch]]:
        """Answers to all the events ask, and what was asked for them now, by call.

        Raises `CallFailed` for a question without an answer whose call says "fail"; what was
        answered is kept for the next attempt. Raises `JournalDamaged`, `StoreError`.
        """
        wanted = questions(self._calls, events)
        if not wanted:
            return Answers(self._calls, {}), {}
        pages = self._journal.open(epoch, shard)
        asked = {key: q for key, q in wanted.items() if key not in pages.outcomes}
        found, counts = self._caller.ask(asked)
        pages.add({key: outcome for key, outcome in found.items() if self._may_keep(key, outcome)})
        for key in asked:
            if key not in pages.outcomes:
                raise self._failed(key, found[key], sum(key not in pages.outcomes for key in asked))
        return Answers(self._calls, pages.outcomes), counts

    def _may_keep(self, key: Key, outcome: Outcome) -> bool:
        return outcome.answer is not None or self._calls[key[0]].policy.on_failure != "fail"

    def _failed(self, key: Key, outcome: Outcome, failures: int) -> CallFailed:
        return CallFailed(
            f"The call {key[0]!r} was not answered for {failures} questions of this epoch, the "
            f"first: {outcome.why}.",
            hint='The epoch is tried again. With on_failure="dead-letter" or "none" it would go on '
            "without these answers.",
        )
