"""`catchwater dev`: broker, pipeline and page in one process tree, for a day's work on a function.

This process starts the others and watches files. It never imports the user's code: a process of its
own looks at it after every save, so that code that cannot be imported costs nothing but a message.
Each child ends when its standard input does: nothing is left of the tree, even when this process is
killed. What children say goes where this process's output goes; the broker's log is in a file.
"""

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from catchwater.cli.console import HERE, Bootstrap, answers, declared_here, noun
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.clock import Clock
    from catchwater.pipeline.develop import Snapshot, Tell
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.pipeline.run.driver import Stop
    from catchwater.pipeline.supervise import DriverProcess
    from catchwater.wire.client import Client

app = noun(has_verbs=False)

PARTITIONS = 4
"""Of a topic that is not there yet, at a broker of ours."""
_LOOK_S = 0.25
"""How often files are looked at."""
_SETTLED_S = 0.1
"""An editor may write a file in several steps: it is saved when it has not changed for so long."""
_CHECK_S = 60.0
"""How long a module may take to be imported."""
_READY_S = 60.0
_ASK_S = 20.0
"""How long a broker that was there may take to say what topics it has."""
_END_S = 40.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_CHILD = "from catchwater.cli.dev import child; child()"


@app.command()
def dev(
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|MODULE]",
            help="The pipeline's TOML file, SCRIPT.py:NAME of one in Python, or a module with a "
            "function, such as cards.py.",
        ),
    ] = "pipeline.toml",
    bootstrap: Bootstrap = HERE,
    look: Annotated[bool, typer.Option("--look", hidden=True)] = False,
    drive: Annotated[bool, typer.Option("--drive", hidden=True)] = False,
) -> None:
    """Run a broker and a pipeline here, and take each saved change of the function over at once.

    Code is imported and checked first: what cannot run leaves what runs alone, and is named with
    its line. State is kept where its declaration allows it. A line of JSON that is typed is an
    event. A broker that answers already is used as it is. Ctrl-C ends everything.
    """
    if look:
        _look(file, bootstrap)
    elif drive:
        from catchwater.cli.console import log_to_stderr
        from catchwater.pipeline.develop import drive as run

        log_to_stderr()
        _quiet()
        run(lambda: _load(file, bootstrap))
    else:
        _run(file, bootstrap)


def _quiet() -> None:
    """What a person at a terminal wants to know of a pipeline is no log."""
    import logging

    logging.getLogger().setLevel(logging.WARNING)


def _load(file: str, bootstrap: str) -> "PipelineConfig":
    """A pipeline by its file, by the script that makes it, or around a module. `ConfigError`."""
    from dataclasses import replace

    from catchwater.pipeline.develop import of_module
    from catchwater.recovery.handover import current

    if file.endswith(".toml") or Path(file).is_dir():
        config = declared_here(Path(file))
    elif _makes_a_pipeline(file):
        config = declared_here(Path(file))
    else:
        config = of_module(file, bootstrap)
    return replace(config, checkpoint=current(config.checkpoint))


def _makes_a_pipeline(file: str) -> bool:
    """Whether `SCRIPT.py:NAME` names a pipeline, and no function."""
    from catchwater.pipeline.pipeline import Pipeline
    from catchwater.pipeline.run.versions import find_module

    script, colon, name = file.rpartition(":")
    if not colon or not script.endswith(".py"):
        return False
    path = Path(script)
    return isinstance(getattr(find_module(path.stem, path.resolve().parent), name, None), Pipeline)


def _look(file: str, bootstrap: str) -> None:
    """In a process of its own: say what lies on disk now."""
    from contextlib import redirect_stdout

    import msgspec

    from catchwater.pipeline.develop import look

    with redirect_stdout(sys.stderr):  # what a module prints while it is imported
        seen = look(lambda: _load(file, bootstrap))
    typer.echo(msgspec.json.encode(seen).decode())


def child() -> None:
    """A child's start: a command that ends, with all it has started, when its parent does.

    Its arguments are a log, or "-", and those of the command.
    """
    from catchwater.cli import main

    log = sys.argv.pop(1)
    if log != "-":
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.close(descriptor)
    if "--drive" not in sys.argv:  # the driver reads its orders itself
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    main()


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


class BrokerGone(CatchwaterError):
    """The broker that `dev` has started ended, or did not start."""


@dataclass(frozen=True)
class _Wrong:
    """A look that failed: what it said."""

    error: str
    hint: str = ""


def _run(file: str, bootstrap: str) -> None:
    from catchwater.clock import SYSTEM
    from catchwater.pipeline.develop import Tell
    from catchwater.pipeline.run.driver import stop_requested
    from catchwater.pipeline.spark import session

    if file.endswith(".toml"):
        declared_here(Path(file))  # a file that is missing is not waited for
    session.check_packages()  # nor is Spark, or Java
    session.find_java()
    with stop_requested() as stop:
        _Dev(file, bootstrap, stop, Tell(), SYSTEM).run()


class _Dev:
    """The parent: what runs, and what was seen of the files last."""

    def __init__(
        self, file: str, bootstrap: str, stop: "Stop", tell: "Tell", clock: "Clock"
    ) -> None:
        self._file = file
        self._bootstrap = bootstrap
        self._stop = stop
        self._tell = tell
        self._clock = clock
        self._broker: DriverProcess | None = None
        self._driver: DriverProcess | None = None
        self._committed = -1
        """The last epoch when the driver was started."""

    def run(self) -> None:
        """Until Ctrl-C. Raises `BrokerGone`, `CheckpointInUse`."""
        from catchwater.pipeline.supervise import LOCK_WAIT_S
        from catchwater.recovery.folder import SUPERVISOR, lock

        seen = self._first_look()
        if seen is None:
            return
        files = self._saved(seen)  # what is saved from now on is a change
        checkpoint = Path(seen.checkpoint)
        with lock(checkpoint, self._clock, name=SUPERVISOR, wait_s=LOCK_WAIT_S):
            try:
                self._start_driver(seen)  # Spark starts while the broker does
                control = self._start_broker(seen)
                topics = self._make_topics(seen)
                self._order()
                self._say_where(seen, control, topics)
                self._watch(seen, files)
            finally:
                self._end()

    # What lies on disk.

    def _first_look(self) -> "Snapshot | None":
        """The first that is good; None: it was to stop."""
        while not self._stop.requested:
            files = self._saved(None)
            found = self._look()
            if not isinstance(found, _Wrong):
                return found
            self._say_wrong(found, "nothing runs yet: save what mends it")
            while not self._stop.requested and self._saved(None) == files:
                self._stop.pause(self._clock, _LOOK_S)
        return None

    def _look(self) -> "Snapshot | _Wrong":
        """Ask a process of its own what lies on disk."""
        import msgspec

        from catchwater.pipeline.develop import Snapshot

        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, "-", *self._arguments("--look")],
                stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
            with process:
                try:
                    code = process.wait(_CHECK_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    return _Wrong(f"The code was not imported within {_CHECK_S:.0f} s.")
            if code == 0:
                return msgspec.json.decode(_lines(out)[-1], type=Snapshot)
            said = _lines(err)
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        hints = [line.removeprefix("hint: ") for line in said if line.startswith("hint: ")]
        return _Wrong((errors or said or [f"It ended with exit code {code}."])[-1], *hints[-1:])

    def _saved(self, seen: "Snapshot | None") -> dict[str, tuple[int, int]]:
        """The files that matter, each with when it was written and its size."""
        script = Path(self._file.partition(":")[0])
        folder = Path(seen.folder) if seen else script.absolute().parent
        paths = {script, *folder.glob("*.py"), *map(Path, seen.files if seen else ())}
        found = {}
        for path in paths:
            with suppress(OSError):
                status = path.stat()
                found[str(path)] = (status.st_mtime_ns, status.st_size)
        return found

    def _say_wrong(self, wrong: _Wrong, then: str) -> None:
        self._tell.say("error", wrong.error)
        if wrong.hint:
            self._tell.say("hint", wrong.hint)
        self._tell.say("dev", then)

    # The children.

    def _arguments(self, flag: str) -> Sequence[str]:
        return ["dev", self._file, "--bootstrap", self._bootstrap, flag]

    def _start(
        self, log: Path | None, arguments: Sequence[str], checkpoint: Path
    ) -> "DriverProcess":
        from catchwater.pipeline.supervise import DriverProcess

        command = [sys.executable, "-c", _CHILD, str(log or "-"), *arguments]
        return DriverProcess(command, checkpoint, self._clock)

    def _start_broker(self, seen: "Snapshot") -> str | None:
        """The broker's control API; None: it is another's broker."""
        from catchwater.broker_config import DEFAULT_CONTROL_LISTENER
        from catchwater.kafka_listeners import Address
        from catchwater.wire.connection import parse_bootstrap

        addresses = parse_bootstrap(seen.bootstrap)
        if any(map(answers, addresses)):
            self._check_kafka(seen)
            return None
        host, port = addresses[0]
        if host not in _LOOPBACK or seen.secured:
            self._tell.say("dev", f"no broker answers at {seen.bootstrap}; the pipeline tries on")
            return None
        work = Path(seen.folder) / ".catchwater"
        work.mkdir(exist_ok=True)
        ready, log = work / "broker.json", work / "broker.log"
        ready.unlink(missing_ok=True)
        control: Address = DEFAULT_CONTROL_LISTENER
        control_port = 0 if answers((control.host, control.port)) else control.port
        data = Path(seen.folder) / "catchwater-data"
        self._broker = broker = self._start(
            log,
            ["broker", "run", "--kafka-port", str(port), "--control-port", str(control_port),
             "--data", str(data), "--ready-file", str(ready)],
            Path(seen.checkpoint),
        )  # fmt: skip
        until_s = self._clock.monotonic_s() + _READY_S
        while not ready.exists() and not self._stop.requested:
            if broker.ended() is not None or self._clock.monotonic_s() > until_s:
                last = log.read_text(errors="replace").strip().splitlines()[-2:]
                raise BrokerGone(f"The broker did not start: {' '.join(last)}", hint=f"Read {log}.")
            self._stop.pause(self._clock, 0.05)
        return _control_of(ready)

    def _check_kafka(self, seen: "Snapshot") -> None:
        """Raise `BrokerGone` where something else than a broker has the port."""
        from catchwater.wire.client import Client

        if seen.secured:  # the driver has what it takes to log in, and says what is wrong
            return
        try:
            with Client(seen.bootstrap, client_id="catchwater-dev", timeout_s=_ASK_S) as client:
                client.metadata()
        except CatchwaterError as error:
            raise BrokerGone(
                f"What listens at {seen.bootstrap} does not answer as a Kafka broker does: {error}",
                hint="End it, or name a free port: kafka.bootstrap.servers in the file, or "
                "--bootstrap for a module.",
            ) from error

    def _make_topics(self, seen: "Snapshot") -> list[str]:
        """At a broker of ours the topics that are not there; which were made."""
        if self._broker is None or self._stop.requested:
            return []
        with self._client(seen) as client:
            made = sorted({*seen.topics} - {*client.metadata().topics()})
            client.create_topics(dict.fromkeys(made, PARTITIONS))
        return made

    def _client(self, seen: "Snapshot") -> "Client":
        from catchwater.wire.client import Client

        return Client(seen.bootstrap, client_id="catchwater-dev", timeout_s=_READY_S)

    def _start_driver(self, seen: "Snapshot") -> None:
        from catchwater.recovery.checkpoint import last_commit

        checkpoint = Path(seen.checkpoint)
        self._committed = last_commit(checkpoint)
        self._driver = self._start(None, self._arguments("--drive"), checkpoint)

    def _order(self, what: str = "", saved_ms: int = 0, *, fresh_workers: bool = False) -> None:
        """Let the driver begin, or go on with a change."""
        import msgspec

        from catchwater.pipeline.develop import Order

        if self._driver is not None:
            line = msgspec.json.encode(Order(what, saved_ms, fresh_workers))
            self._driver.say(line + b"\n")

    def _say_where(self, seen: "Snapshot", control: str | None, made: Sequence[str]) -> None:
        named = ", ".join(f"{each.name} v{each.version}" for each in seen.functions)
        lines = [("pipeline", f"{seen.pipeline}: {named}, checkpoint {seen.checkpoint}")]
        if self._broker is None:
            lines.append(("broker", f"{seen.bootstrap}, which was there"))
        else:
            folder = Path(seen.folder)
            data, log = folder / "catchwater-data", folder / ".catchwater" / "broker.log"
            lines.append(("broker", f"{seen.bootstrap}, data in {data}, log {log}"))
        if control is not None:
            lines.append(("page" if _has_page(control) else "control", control))
        topics = [f"{each} (made)" if each in made else each for each in seen.topics]
        lines += [("topics", ", ".join(topics))]
        lines += [("sink", f"{name}: {target}") for name, target in seen.sinks.items()]
        if sys.stdin.isatty():
            key = ", ".join(seen.key)
            lines.append(("dev", f"type an event as a line of JSON with {key}; Ctrl-C ends all"))
        for who, text in lines:
            self._tell.say(who, text)

    # The day.

    def _watch(self, seen: "Snapshot", files: dict[str, tuple[int, int]]) -> None:
        """Until it is to stop. Raises `BrokerGone`."""
        from catchwater.pipeline.workers import ended

        self._send_lines(seen)
        is_wrong = False
        while not self._stop.requested:
            if self._broker is not None and (failure := self._broker.ended()) is not None:
                raise BrokerGone(
                    f"The broker {ended(failure.exit_code)}.",
                    hint=f"Read {Path(seen.folder) / '.catchwater' / 'broker.log'}.",
                )
            self._look_after_driver(seen)
            saved = self._saved(seen)
            if saved != files:
                files = self._settled(seen, saved)
                saved_ms = self._clock.now_ms()
                found = self._look()
                if isinstance(found, _Wrong):
                    is_wrong = True
                    self._say_wrong(found, "the code from before goes on")
                else:
                    seen = self._take_over(found, seen, saved_ms, was_wrong=is_wrong)
                    is_wrong = False
                    files |= {k: v for k, v in self._saved(seen).items() if k not in files}
            self._stop.pause(self._clock, _LOOK_S)

    def _settled(
        self, seen: "Snapshot", saved: dict[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        while not self._stop.requested:
            self._stop.pause(self._clock, _SETTLED_S)
            now = self._saved(seen)
            if now == saved:
                break
            saved = now
        return saved

    def _take_over(
        self, found: "Snapshot", seen: "Snapshot", saved_ms: int, *, was_wrong: bool
    ) -> "Snapshot":
        """Let the driver go on with what was found, or say that there is nothing to do.

        Returns what runs then.
        """
        if (found.bootstrap, found.checkpoint) != (seen.bootstrap, seen.checkpoint):
            self._tell.say("dev", "another log or checkpoint takes another start of this command")
            return seen
        if found.settings != seen.settings:
            self._tell.say("dev", "the pipeline's settings changed: it starts again")
            self._stop_driver()
            self._make_topics(found)
            self._start_driver(found)
            self._order()
            return found
        changed = found.changed(seen)
        if self._driver is None:
            self._start_driver(found)
            self._order()
        elif changed:
            what = f"{', '.join(changed)} changed"
            self._order(what, saved_ms, fresh_workers=found.needs_fresh_workers(seen))
        elif was_wrong:
            self._tell.say("dev", "the code is as it was before; it goes on")
        elif found.files != seen.files:
            self._tell.say("dev", "nothing that runs has changed")
        return found

    def _look_after_driver(self, seen: "Snapshot") -> None:
        """Start it again where it got somewhere before it ended; else a change is waited for."""
        from catchwater.recovery.checkpoint import last_commit

        if self._driver is None or (failure := self._driver.ended()) is None:
            return
        self._driver.end()
        self._driver = None
        progressed = last_commit(Path(seen.checkpoint)) > self._committed
        then = "it is started again" if progressed else "it starts again at the next change"
        self._tell.say("dev", f"the pipeline ended: {failure} {then}")
        if progressed:
            self._start_driver(seen)
            self._order()

    def _send_lines(self, seen: "Snapshot") -> None:
        """Send each line of standard input to the first input topic, until it ends."""
        if seen.input:
            threading.Thread(target=self._send, args=(seen,), name="lines", daemon=True).start()

    def _send(self, seen: "Snapshot") -> None:
        from catchwater.pipeline.develop import key_of
        from catchwater.sinks.log_stager import partition_of
        from catchwater.wire.arrow import encode_batch

        topic = seen.input
        for line in _typed():
            try:
                key = key_of(line, seen.key)
                with self._client(seen) as client:
                    partitions = len(client.metadata([topic]).partitions(topic))
                    batch = encode_batch([(key, line, self._clock.now_ms(), ())])
                    client.produce([((topic, partition_of(key, partitions)), batch)])
            except CatchwaterError as error:
                self._tell.error(error)

    # The end.

    def _stop_driver(self) -> None:
        if self._driver is not None:
            _stopped(self._driver, self._stop, self._clock)
            self._driver = None

    def _end(self) -> None:
        """The pipeline first, which still needs the broker."""
        self._tell.say("dev", "ending")
        self._stop.requested = False  # another Ctrl-C waits no longer
        self._stop_driver()
        if self._broker is not None:
            _stopped(self._broker, self._stop, self._clock)


def _stopped(process: "DriverProcess", stop: "Stop", clock: "Clock") -> None:
    """Ask it to end, and end it with all it has started if it takes long or a signal comes."""
    process.stop()
    until_s = clock.monotonic_s() + _END_S
    while process.ended() is None and not stop.requested and clock.monotonic_s() < until_s:
        stop.pause(clock, 0.1)
    process.end()


def _typed() -> Iterator[bytes]:
    """The lines of standard input that say something."""
    left = b""
    with suppress(OSError):  # of a terminal that is gone
        while data := os.read(0, 1 << 16):
            *lines, left = (left + data).split(b"\n")
            yield from filter(None, map(bytes.strip, lines))
    yield from filter(None, [left.strip()])


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").strip().splitlines()


def _control_of(ready: Path) -> str | None:
    import msgspec

    with suppress(OSError, msgspec.DecodeError):
        return str(msgspec.json.decode(ready.read_bytes())["control"])
    return None


def _has_page(control: str) -> bool:
    """Whether a browser would be shown something there."""
    place = urlsplit(control)
    with suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=2.0)
        connection.request("GET", "/", headers={"Accept": "text/html"})
        answer = connection.getresponse()
        connection.close()
        return answer.status < 400 and "html" in (answer.getheader("Content-Type") or "")
    return False
