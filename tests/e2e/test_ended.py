"""What a pipeline says when a Python process of Spark's hangs or dies, on a shared session."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import ZYGOTE
from tests.e2e.in_session import Pipeline, produce, read

from catchwater.pipeline.spark.failure import PipelineFailed
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

FUNCTION = '''"""What each event says is done."""
import os, signal, time
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Event:
    key: str
    at: int
    do: str

@dataclass
class State:
    n: int = 0

@dataclass
class Told:
    key: str
    n: int

@function(name="doing", key="key", event_time="at", handler_timeout="1s")
class Doing(Keyed[Event, State, Told]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[Told]:
        s.n += 1
        if e.do == "loop":
            while True:
                pass
        if e.do == "exit":
            os._exit(3)
        if e.do == "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return [Told(e.key, s.n)]
'''

FILE = """\
[pipeline]
name = "{name}"
function = "doing_{name}:Doing"
checkpoint = "checkpoint"
local = "local"
trigger = "{trigger}"
poison = "{poison}"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{name}"
startingOffsets = "earliest"
[sink.told]
topic = "{name}-told"
[dead_letter]
topic = "{name}-letters"
"""


@pytest.fixture
def make(make_broker: Callable[..., Any], tmp_path: Path, spark: Any) -> Callable[..., Pipeline]:
    """`make("name", *dos)`: a pipeline over events that say what is to be done."""
    broker = make_broker({"log.retention.ms": "-1"})

    def make(
        name: str, *dos: str, poison: str = "fail", trigger: str = "available-now"
    ) -> Pipeline:
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"doing_{name}.py").write_text(FUNCTION)
        (folder / "pipeline.toml").write_text(
            FILE.format(name=name, trigger=trigger, poison=poison, bootstrap=broker.bootstrap)
        )
        with Client(broker.bootstrap) as client:
            client.create_topics({name: 1})
        events = [{"key": "a", "at": n, "do": do} for n, do in enumerate(dos)]
        produce(broker.bootstrap, name, 0, *events)
        pipeline = Pipeline(spark, folder, folder / "pipeline.toml")
        pipeline.bootstrap = broker.bootstrap  # type: ignore[attr-defined]
        return pipeline

    return make


def failed(pipeline: Pipeline, **how: Any) -> PipelineFailed:
    with pytest.raises(PipelineFailed) as error:
        pipeline.run(**how)
    print("\nTOLD", error.value, "\nHINT", error.value.hint)
    return error.value


def test_a_handler_that_loops_for_ever_fails_the_pipeline_by_name(
    make: Callable[..., Pipeline],
) -> None:
    error = failed(make("loops", "", "loop"))
    assert error.kind == "EventFailed"
    assert (
        "Function 'doing' cannot handle the event at loops-0, offset 1, key #ca978112ca1b: "
        "HandlerTimeout: it had not ended after 1 s, its handler_timeout, in on_event" in str(error)
    )


def test_where_the_policy_is_dead_letters_what_hangs_and_what_dies_go_there(
    make: Callable[..., Pipeline],
) -> None:
    pipeline = make("letters", "", "loop", "exit", "", poison="dead-letter")
    pipeline.run()
    bootstrap = pipeline.bootstrap  # type: ignore[attr-defined]
    assert [json.loads(value)["n"] for _, value in read(bootstrap, "letters-told")] == [1, 2]
    letters = [headers for headers, _ in read(bootstrap, "letters-letters")]
    assert [headers["offset"] for headers in letters] == [b"1", b"2"]
    assert letters[1]["error"] == b"the process that handled it ended with exit code 3."


def test_a_worker_that_is_killed_is_told_with_signal_function_and_epoch(
    make: Callable[..., Pipeline],
) -> None:
    error = failed(make("killed", "", "be killed"))
    assert error.kind == "ProcessEnded"
    assert "was ended by SIGKILL (signal 9) in function 'doing' (epoch 0, shard" in str(error)
    assert "MiB" in str(error) and "lower tasks or maxOffsetsPerTrigger" in (error.hint or "")


def test_a_handler_that_ends_its_process_is_told_with_its_record(
    make: Callable[..., Pipeline],
) -> None:
    error = failed(make("exits", "", "exit"))
    assert (
        "Function 'doing' cannot handle the event at exits-0, offset 1, key #ca978112ca1b: "
        "the process that handled it ended with exit code 3" in str(error)
    )


def test_the_sources_process_that_is_killed_is_told(make: Callable[..., Pipeline]) -> None:
    pipeline = make("source", "", trigger="continuous")

    killed: list[int] = []

    def kill_it() -> bool:
        if pipeline.committed >= 0 and not killed:
            killed.extend(source_processes())
            for pid in killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return False

    error = failed(pipeline, until=kill_it)
    assert "The source's Python (process" in str(error)
    assert "was ended by SIGKILL (signal 9)" in str(error)


def source_processes() -> list[int]:
    """Forks of the zygote that are no daemon with workers."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if ZYGOTE in (path / "cmdline").read_bytes() and fields[0] not in "ZX":
                parents[int(path.name)] = int(fields[1])
    zygotes = {pid for pid, parent in parents.items() if parent == os.getpid()}
    return [
        pid for pid, parent in parents.items() if parent in zygotes and pid not in parents.values()
    ]
