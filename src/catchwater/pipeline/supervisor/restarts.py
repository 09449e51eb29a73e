"""Whether a failed pipeline is started again, and after how long. Pure; told the time.

The first failure, and every one after an epoch was committed, is followed by a start at once;
failures in a row wait 1, 2, 4 … 60 seconds, give or take a fifth. More than `limit` failures
within an hour end it. What another start cannot mend is not tried again: a usage error, a
checkpoint that is refused. A record that no handler can handle or no sink will take, and a broken
file, are tried once more: the machine may be to blame, and a start looks for a checkpoint that is
whole.
"""

from collections import deque
from dataclasses import dataclass
from random import Random  # noqa: TID251  (only its type; drawn from a clock's)

from catchwater.pipeline.workers import ended

RESTARTS = 10
"""Within an hour, where the pipeline's file names no other number."""
HOUR_S = 3600.0
LONGEST_WAIT_S = 60.0
JITTER = 0.2

NOT_MENDED_EXIT_CODES = (2, 5)
NOT_MENDED = frozenset(
    {"CheckpointInUse", "CodeChanged", "InputMissing", "JavaMissing", "SparkMissing"}
)
"""Kinds of errors that stay however often one tries."""
ONCE_MORE = frozenset(
    {"EventFailed", "PoisonLimitReached", "LedgerDamaged", "ShardDamaged"}
    | {"RowUnfit", "ValueUnfit", "RecordRefused"}
)
"""Kinds of errors that input, files or a sink's target are to blame for; a start may find a whole
checkpoint."""


@dataclass(frozen=True)
class Failure:
    """How a driver ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    kind: str = ""
    """The class of its error, where it could still tell."""
    message: str = ""
    hint: str | None = None

    def __str__(self) -> str:
        if self.message:
            return self.message
        return f"The driver {ended(self.exit_code)}."


class Restarts:
    """The failures of one supervised pipeline."""

    def __init__(self, limit: int, random: Random) -> None:
        self._limit = limit
        self._random = random
        self._failed_s: deque[float] = deque()
        self._in_a_row = 0
        self._tried_once_more = False

    @property
    def recent(self) -> int:
        """Failures of the last hour before the last failure."""
        return len(self._failed_s)

    def failed(self, failure: Failure, *, progressed: bool, now_s: float) -> float | None:
        """Seconds to wait before the next start; None: there is none.

        `progressed` says whether an epoch was committed since the last start.
        """
        self._failed_s.append(now_s)
        while self._failed_s[0] < now_s - HOUR_S:
            self._failed_s.popleft()
        if failure.exit_code in NOT_MENDED_EXIT_CODES or failure.kind in NOT_MENDED:
            return None
        if self.recent > self._limit:
            return None
        if failure.kind in ONCE_MORE:
            if self._tried_once_more and not progressed:
                return None
            self._tried_once_more = True
        self._in_a_row = 0 if progressed else self._in_a_row + 1
        if self._in_a_row <= 1:
            return 0.0
        wait_s = min(LONGEST_WAIT_S, 2.0 ** min(self._in_a_row - 2, 10))
        return wait_s * self._random.uniform(1 - JITTER, 1 + JITTER)
