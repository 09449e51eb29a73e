"""A log, a pipeline over it, and who watches them: all in one folder, as child processes.

Neither knows that it is watched. What the pipeline has done is read from its checkpoint's files,
what is in the log by Kafka's protocol; so the log may be anybody's.
"""

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.drill.job import write_function
from catchwater.drill.platforms import READY_S, Platform
from catchwater.drill.processes import Child
from catchwater.drill.rows import TABLE, ends_of, read_rows, read_table
from catchwater.drill.watch import Watch
from catchwater.recovery.contract import Contract
from catchwater.recovery.estimate import near_s
from catchwater.recovery.folder import holder
from catchwater.recovery.ledger import Ledger
from catchwater.wire.client import Client

PARTITIONS = 4
EPOCHS_BEFORE_KILL = 3

FIRST_EPOCH_S = 600.0
CATCH_UP_S = 900.0
"""Patience with a machine that others keep busy: a quiet one needs a few seconds for each."""
_SAMPLE_S = 0.25

PIPELINE_FILE = """\
[pipeline]
name = "{name}"
function = "{function}"
checkpoint = "{folder}/checkpoint"
local = "{folder}/local"

[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{topic}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
recordKeyIsFunctionKey = true

[sink.alerts]
{sink}

[recovery]
retain = {retain}
"""


@dataclass(frozen=True)
class Job:
    """What a pipeline reads, does and writes."""

    name: str
    function: str
    """`module:Class`, as a pipeline's file names it."""
    topic: str
    output_topic: str
    epoch_events: int
    retain: int = 100
    """The ledger forgets what is not retained. More is kept here than a demo has epochs, so that
    every one is counted however late its watcher gets its turn to look."""
    into_table: bool = False
    """Its rows go into a SQLite table in the folder, and not into the output topic."""


class Stage:
    """One log and one pipeline; children end when their stack is left."""

    worker = b"catchwater.pipeline.spark.zygote", 2
    """In the command line of the process that Python's workers are forked from, and in theirs; and
    how many forks after it they are."""
    supervises = True
    """Another driver begins by itself."""
    manual_start = "start the pipeline on another machine: catchwater pipeline run FILE"

    def __init__(
        self,
        job: Job,
        platform: Platform,
        folder: Path,
        children: ExitStack,
        clock: Clock = SYSTEM,
        *,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        self.job = job
        self.platform = platform
        self.folder = folder
        self.watch = self.watching()
        self._children = children
        self._clock = clock
        self._marks = marks

    @property
    def checkpoint(self) -> Path:
        """The pipeline's."""
        return self.folder / "checkpoint"

    @property
    def file(self) -> Path:
        """The pipeline's."""
        return self.folder / "pipeline.toml"

    @property
    def database(self) -> Path:
        """Where the table of a job's rows lies, if they go into one."""
        return self.folder / "rows.db"

    def watching(self) -> Watch:
        """Who sees what the pipeline has done."""
        return Watch(self.checkpoint, self.job.topic)

    def write_function(self, *, version: int = 1, keep_bytes: int = 0) -> None:
        """What the pipeline does, beside its file; it keeps so many bytes for each card."""
        write_function(self.folder, version=version, keep_bytes=keep_bytes)

    def checkpoints(self) -> int:
        """How many there are that can be gone back to."""
        return len(list((self.checkpoint / "catchwater" / "contracts").glob("*.json")))

    def kill_driver(self, pipeline: Child) -> None:
        """The driver alone, not who watches it."""
        driver = holder(self.checkpoint) or 0
        if driver:
            with suppress(ProcessLookupError):
                os.kill(driver, signal.SIGKILL)

    def near_s(self) -> float:
        """How near the log's end it is when it has caught up: what comes in two usual epochs."""
        ledger = Ledger(self.checkpoint)
        return near_s([entry for entry in map(ledger.read, ledger.epochs()) if entry])

    def client(self) -> Client:
        """For the platform, with patience."""
        return Client(self.platform.bootstrap, timeout_s=READY_S)

    def start_log(self) -> None:
        """The platform, and the topics; those that are there are left as they are."""
        self.platform.start()
        with self.client() as client:
            topics = [self.job.topic, *([] if self.job.into_table else [self.job.output_topic])]
            client.create_topics(dict.fromkeys(topics, PARTITIONS))

    def write_file(self) -> Path:
        """The pipeline's file, for the platform's address as it is."""
        job, bootstrap = self.job, self.platform.bootstrap
        sink = f'topic = "{job.output_topic}"'
        if job.into_table:
            sink = f'kind = "sqlite"\npath = "{self.database}"\ntable = "{TABLE}"'
        elif not self.platform.ours:
            sink += f'\nkind = "kafka"\n"kafka.bootstrap.servers" = "{bootstrap}"'
        text = PIPELINE_FILE.format(
            name=job.name, function=job.function, folder=self.folder, bootstrap=bootstrap,
            topic=job.topic, epoch_events=job.epoch_events, sink=sink, retain=job.retain,
        )  # fmt: skip
        self.file.write_text(text)
        return self.file

    def start_pipeline(self, *, supervised: bool = False) -> Child:
        """Its driver, or a supervisor that starts one."""
        flags = ["--quick"] if supervised else ["--quick", "--no-supervise"]
        return self.run("pipeline", "pipeline", "run", str(self.write_file()), *flags)

    def run(self, name: str, *arguments: str) -> Child:
        """A `catchwater` command in the background; its log is `name`.log."""
        child = Child(name, arguments, self.folder / f"{name}.log", self._clock, marks=self._marks)
        return self._children.enter_context(child)

    def wait_until_busy(self, pipeline: Child) -> None:
        """Wait for some epochs, and then for one that is planned and not yet committed."""
        ends = self.ends()

        def busy() -> bool:
            self.watch.look()
            enough = self.watch.committed + 1 >= EPOCHS_BEFORE_KILL
            return (enough and self.watch.in_flight) or self.watch.reached(ends)

        pipeline.wait_until(busy, "run its first epochs", FIRST_EPOCH_S)

    def wait_until_replaying(self, pipeline: Child) -> None:
        """Wait for the first epoch that a new start has planned and not yet committed."""

        def replaying() -> bool:
            self.watch.look()
            return self.watch.in_flight

        pipeline.wait_until(replaying, "begun to replay", FIRST_EPOCH_S)

    def wait_until_reached(self, pipeline: Child, ends: Mapping[int, int]) -> None:
        """Wait until the pipeline has read to there."""

        def reached() -> bool:
            self.watch.look()
            return self.watch.reached(ends)

        pipeline.wait_until(reached, "reached the end of its input", CATCH_UP_S)

    def wait_until_caught_up(self, pipeline: Child, near_s: float) -> None:
        """Wait until an epoch ends near the moving end of the log: where it was `near_s` ago."""
        ends: deque[tuple[float, dict[int, int]]] = deque()
        with self.client() as client:

            def caught_up() -> bool:
                now_s = self._clock.monotonic_s()
                if not ends or now_s - ends[-1][0] > _SAMPLE_S:
                    ends.append((now_s, ends_of(client, self.job.topic)))
                while len(ends) > 1 and ends[1][0] <= now_s - near_s:
                    ends.popleft()
                self.watch.look()
                return self.watch.reached(ends[0][1])

            pipeline.wait_until(caught_up, "caught up with its input", CATCH_UP_S)

    def ends(self) -> dict[int, int]:
        """Where the input ends: partition to the offset behind its last record."""
        with self.client() as client:
            return ends_of(client, self.job.topic)

    def rows(self) -> Counter[bytes]:
        """Every row of the job's output, with how often it is there."""
        if self.job.into_table:
            return read_table(self.database)
        with self.client() as client:
            return read_rows(client, self.job.output_topic)

    def contract(self) -> Contract | None:
        """The contract of the last checkpoint that has one."""
        return self.watch.contract()


Tell = Callable[[str, float], None]
"""Called with what is going on and the share that is done, 0 to 1."""
