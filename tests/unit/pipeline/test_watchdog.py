"""Handlers that do not end, and handlers that end their process: attempts as Spark makes them.

Each attempt is a fork of its own, reaped by its parent as Spark's daemon reaps a worker.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from catchwater.pipeline import workers

FUNCTION = """
import itertools, os, signal, time
from collections import deque
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Event:
    card: str
    at: int
    do: str = ""

@dataclass
class State:
    n: int = 0

def swallow():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

DO = {
    "": lambda: None,
    "loop": lambda: exec("while True: pass"),
    "sleep": lambda: time.sleep(10_000),
    "swallow": swallow,
    "loop in C": lambda: deque(itertools.repeat(0), maxlen=0),
    "exit": lambda: os._exit(3),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "be killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}

@function(name="doing", key="card", event_time="at")
class Doing(Keyed[Event, State, str]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[str]:
        s.n += 1
        if e.do == "timer":
            ctx.timer("loop", e.at)
        else:
            DO[e.do]()
        return [f"{e.card} {s.n}"]

    def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[str]:
        DO[name]()
"""

ATTEMPTS = """
import os, signal, sys, time, traceback
from pathlib import Path
import msgspec, pyarrow as pa
from catchwater.pipeline import watchdog, workers
from catchwater.pipeline.functions.spec import Poison
from catchwater.pipeline.pack import pack
from catchwater.pipeline.rows import shard_labels
from catchwater.pipeline.rows import DRIVER, EVENTS, HEAD, Head, Manifest, Row
from catchwater.pipeline.run.versions import find_function, publish
from catchwater.pipeline.shard_epoch import Stage, run_stage
from catchwater.state.roll import EMPTY

watchdog.LOOK_S = 0.1
for line in sys.stdin:  # a test; each in a fork, so that what is imported here is imported once
    folder, policy, *dos = line.rstrip("\\n").split("\\t")
    if os.fork() == 0:
        break
    os.wait()
    print("ended", flush=True)
else:
    sys.exit()
# What can be interrupted has time for that, for the machine may stand still meanwhile.
watchdog.GRACE_LOOKS = 2 if {"swallow", "loop in C"} & {*dos} else 100
folder = Path(folder)
os.environ[workers.FOLDER] = str(folder / "run")
for stream, name in ((1, "answers"), (2, "log")):
    os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
spec = find_function("doing:Doing", folder)
stage = Stage(
    index=0, code=publish(spec, folder), shards=1, objects=(folder / "home").as_uri(),
    folder="state/doing", function="doing", local=str(folder / "local"), stagers={},
    poison=Poison(policy), handler_timeout_ms=300,
)
values = [msgspec.json.encode({"card": "a", "at": 5 + n, "do": do}) for n, do in enumerate(dos)]
offsets = pa.array(range(7, 7 + len(values)), pa.int64())
packed = pack(spec, None, pa.array(values, pa.binary()), offsets, origin="s-0", shards=1)
label = shard_labels(1)[0]
base = EMPTY
for epoch, blobs in enumerate([packed, []] if "timer" in dos else [packed]):
    head = Head(epoch, 10**6 * epoch, 0, base, 0)
    rows = [Row(label, 0, 0, HEAD, msgspec.msgpack.encode(head))]
    rows += [Row(label, 0, shard, EVENTS, blob) for shard, blob in blobs]
    for attempt in range(4):
        sys.stdout.flush()
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                out = list(run_stage(stage, rows))
                os.write(tell, next(row.blob for row in out if row.stage == DRIVER))
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        os.close(tell)
        answer = b"".join(iter(lambda: os.read(told, 65536), b""))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        workers.reap()
        print("attempt", attempt, "answered" if answer else "failed")
        if answer:
            shard = msgspec.msgpack.decode(answer, type=Manifest).shard
            base = shard.position
            print("events", shard.events, "outputs", shard.outputs, "poisoned", shard.poisoned)
            break
"""


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    """The process that makes the attempts."""
    with subprocess.Popen(
        [sys.executable, "-c", ATTEMPTS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0,
    ) as process:  # fmt: skip
        yield process
        os.killpg(process.pid, signal.SIGKILL)  # an attempt that hangs outlives its parent


@pytest.fixture
def ran(parent: subprocess.Popen[str], tmp_path: Path) -> Callable[..., "Ran"]:
    """`ran(policy, *dos)`: what attempts come to at events of which each does something."""
    return partial(Ran, parent, tmp_path)


Run = Callable[..., "Ran"]


class Ran:
    """What the attempts at an epoch came to."""

    def __init__(self, parent: subprocess.Popen[str], folder: Path, policy: str, *dos: str) -> None:
        (folder / "doing.py").write_text(FUNCTION)
        (folder / "run").mkdir()
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdin.write("\t".join([str(folder), policy, *dos]) + "\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "ended\n"
        self.answers = (folder / "answers").read_text().splitlines()
        self.log = (folder / "log").read_text()
        self.folder = folder / "run"

    @property
    def ends(self) -> list[workers.ProcessEnd]:
        return workers.read_ends(self.folder)


@pytest.mark.parametrize("do", ["loop", "sleep"])
def test_a_handler_that_does_not_end_is_named_with_its_record_and_its_stack(
    do: str, ran: Run
) -> None:
    found = ran("fail", "", do, "")
    assert found.answers == [f"attempt {n} failed" for n in range(4)]
    place = "Function 'doing' cannot handle the event at s-0, offset 8, key #ca978112ca1b"
    error = f"{place}: HandlerTimeout: it had not ended after 0.3 s, its handler_timeout, in "
    assert found.log.count(error) == 4
    assert found.log.count("offset 8, key #ca978112ca1b. It is here:") == 2, (
        "tried twice, by one attempt"
    )
    assert "in on_event" in found.log


def test_a_handler_that_does_not_end_is_passed_over_where_that_is_the_policy(
    ran: Run,
) -> None:
    found = ran("skip", "", "loop", "", "sleep", "")
    assert found.answers == ["attempt 0 answered", "events 5 outputs 3 poisoned 2"]


def test_a_timer_that_does_not_end_is_passed_over_too(ran: Run) -> None:
    found = ran("skip", "", "timer")
    assert found.answers == [
        "attempt 0 answered", "events 2 outputs 2 poisoned 0",
        "attempt 0 answered", "events 0 outputs 0 poisoned 1",
    ]  # fmt: skip


@pytest.mark.parametrize("do", ["swallow", "loop in C"])
def test_a_handler_that_cannot_be_interrupted_ends_its_process(
    do: str, ran: Run, tmp_path: Path
) -> None:
    found = ran("skip", "", do, "")
    assert found.answers == [
        "attempt 0 failed", "attempt 1 failed", "attempt 2 answered",
        "events 3 outputs 2 poisoned 1",
    ]  # fmt: skip
    first, second = found.ends
    assert first.doing == workers.Doing("doing", 0, 0, 0)
    assert second.doing and second.doing.cause and second.doing.cause.offset == 8
    assert "did not end and could not be interrupted" in str(second)
    assert f'File "{tmp_path}' in str(second), "where it was"


@pytest.mark.parametrize(
    "do, how", [("exit", "ended with exit code 3"), ("crash", "was ended by SIGSEGV (signal 11)")]
)
def test_a_handler_that_ends_its_process_is_found(do: str, how: str, ran: Run) -> None:
    found = ran("fail", "", "", do)
    assert found.answers == [f"attempt {n} failed" for n in range(4)]
    place = "the event at s-0, offset 9, key #ca978112ca1b"
    error = f"cannot handle {place}: the process that handled it {how}"
    assert found.log.count(error) == 2
    assert "in function 'doing' (epoch 0, shard 0), at s-0 offset 9" in str(found.ends[-1])


def test_what_somebody_else_has_killed_is_no_events_fault(ran: Run) -> None:
    found = ran("skip", "", "be killed")
    assert found.answers == [f"attempt {n} failed" for n in range(4)]
    assert {each.code for each in found.ends} == {-9} and not any(e.handlers for e in found.ends)
    assert "was ended by SIGKILL (signal 9) in function 'doing'" in str(found.ends[0])
    assert "kill -9" in workers.hint(found.ends[0])


def test_a_signal_is_told_by_its_name_where_it_has_one() -> None:
    assert workers.ended(-9) == "was ended by SIGKILL (signal 9)"
    assert workers.ended(-77) == "was ended by signal 77"


def test_a_page_that_was_half_written_says_nothing(tmp_path: Path) -> None:
    doing = msgspec.msgpack.encode(workers.Doing("f", 0, 1, 2))
    page = tmp_path / "page"
    page.write_bytes(len(doing).to_bytes(4, "big") + doing[:-3])
    assert workers._read_note(page) is None


def test_nothing_is_noted_where_the_folder_has_gone_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_NOTES", {})
    monkeypatch.setenv(workers.FOLDER, str(tmp_path / "gone"))
    assert workers.notes() is None and not (tmp_path / "gone").exists()
