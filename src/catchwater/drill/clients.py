"""Clients of the log during a drill, and what they are told: a history for the checker.

A writer sends numbered records to every partition and notes what is acknowledged; a reader follows
the tail and notes what it is given. Both go on through an outage. In the end everything is read
from the beginning, and `check` judges all of it together.
"""

import gc
from collections.abc import Callable
from itertools import count
from threading import Event, Lock, Thread
from typing import NamedTuple

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.drill.check import Report, check
from catchwater.drill.history import Line, PollLine, SendLine, Type, Value
from catchwater.drill.rows import ends_of
from catchwater.wire.arrow import Record, decode, encode_batch, place
from catchwater.wire.client import Client
from catchwater.wire.fetch import Fetched

PATIENCE_S = 300.0
"""How long brokers may be away before a client gives up."""
WRITER, READER, JUDGE = 1, 2, 3
_ROUND = 5
"""Records a partition gets at a time."""
_PAUSE_S = 0.002
"""Between two rounds: enough for a log under load, and little enough for a busy machine."""


class Acknowledged(NamedTuple):
    """One round of the writer's: when it was answered, and how long that took."""

    at_s: float
    took_s: float


class Clients:
    """A writer and a reader of one topic, until `end`."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, clock: Clock = SYSTEM, padding: int = 100
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._clock = clock
        self._padding = b"." * padding
        self._lock = Lock()
        self._lines: list[Line] = []
        self._over = Event()
        self._resting, self._idle = Event(), Event()
        self._errors: list[CatchwaterError] = []
        self.rounds: list[Acknowledged] = []
        self.rests: list[tuple[float, float]] = []
        """From when until when nobody wrote, because nobody wanted to."""
        self._rest_s = 0.0
        self._threads = [
            Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._write, self._read)
        ]

    @property
    def records(self) -> int:
        """Acknowledged so far."""
        return len(self.rounds) * self._partitions * _ROUND

    def start(self) -> None:
        """Both go on until `end`.

        Python looks for no garbage meanwhile: that would hold both up for 0.2 s.
        """
        gc.disable()
        for thread in self._threads:
            thread.start()

    def rest(self) -> None:
        """Write nothing from now on; returns when the last record is acknowledged."""
        self._rest_s = self._clock.monotonic_s()
        self._resting.set()
        while not self._idle.wait(_PAUSE_S) and self._threads[0].is_alive():
            pass

    def go_on(self) -> None:
        """Write again."""
        self.rests.append((self._rest_s, self._clock.monotonic_s()))
        self._idle.clear()
        self._resting.clear()

    def end(self) -> None:
        """Stop both. Raises what befell one of them."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        gc.enable()
        if self._errors:
            raise self._errors[0]

    def give_up(self) -> None:
        """Stop both, without waiting for a log that may never answer."""
        self._over.set()
        gc.enable()

    def judge(self) -> Report:
        """Read everything from the beginning, and check the whole history."""
        with Client(self._bootstrap, timeout_s=PATIENCE_S) as client:
            for partition, end in ends_of(client, self._topic).items():
                offset = 0
                while offset < end:
                    fetched = client.fetch({(self._topic, partition): offset})
                    line, offset = self._polled(JUDGE, partition, offset, fetched)
                    line.final = True
                    self._note(line)
                empty = PollLine(self._topic, partition, [], process=JUDGE, type="ok", final=True)
                self._note(empty)
        return check(self._lines)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except CatchwaterError as error:
            self._errors.append(error)

    def _note(self, line: Line) -> None:
        with self._lock:
            self._lines.append(line)

    def _write(self) -> None:
        numbers = count()
        with Client(self._bootstrap, timeout_s=PATIENCE_S) as client:
            producer_id, epoch = client.init_producer_id()
            sequence = 0
            while not self._over.wait(_PAUSE_S):
                if self._resting.is_set():
                    self._idle.set()
                    continue
                values = [[next(numbers) for _ in range(_ROUND)] for _ in range(self._partitions)]
                batches = []
                for partition, sent in enumerate(values):
                    self._sent(partition, sent, None)
                    records: list[Record] = [
                        (None, b"%d %b" % (value, self._padding), self._clock.now_ms(), ())
                        for value in sent
                    ]
                    batch = encode_batch(
                        records,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        base_sequence=sequence,
                    )
                    batches.append(((self._topic, partition), batch))
                began_s = self._clock.monotonic_s()
                offsets = client.produce(batches)
                now_s = self._clock.monotonic_s()
                sequence += _ROUND
                self.rounds.append(Acknowledged(now_s, now_s - began_s))
                for partition, sent in enumerate(values):
                    self._sent(partition, sent, offsets[partition])

    def _sent(self, partition: int, values: list[int], base: int | None) -> None:
        for index, value in enumerate(values):
            # -1: it has the batch from a try before, and does not know any more where.
            offset = None if base is None or base < 0 else base + index
            kind: Type = "invoke" if base is None else "ok"
            place = (self._topic, partition, value, None, offset)
            self._note(SendLine(*place, process=WRITER, type=kind))

    def _read(self) -> None:
        keys = [(self._topic, partition) for partition in range(self._partitions)]
        offsets = dict.fromkeys(keys, 0)
        with Client(self._bootstrap, timeout_s=PATIENCE_S) as client:
            while not self._over.wait(_PAUSE_S):
                fetched = client.fetch(offsets, max_wait_ms=100)
                for key in keys:
                    if key in fetched:
                        line, offsets[key] = self._polled(READER, key[1], offsets[key], fetched)
                        self._note(line)

    def _polled(
        self, process: int, partition: int, offset: int, fetched: dict[tuple[str, int], Fetched]
    ) -> tuple[PollLine, int]:
        """What a poll gave, as a line, and where the next one begins."""
        answer = fetched[self._topic, partition]
        batches = place(answer.records, partial_tail=True)
        records: list[tuple[int, Value]] = []
        for table in decode(answer.records, batches, first=offset, columns=["offset", "value"]):
            for at, value in zip(
                table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True
            ):
                records.append((at, int(value.split(b" ", 1)[0])))
        line = PollLine(
            self._topic,
            partition,
            records,
            answer.high_watermark,
            False,
            process=process,
            type="ok",
        )
        return line, batches[-1].next_offset if batches else offset
