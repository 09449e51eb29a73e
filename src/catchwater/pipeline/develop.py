"""What `catchwater dev` runs in processes of its own: a look at saved code, and a driver.

**A look** imports the code that lies on disk now, in a process that then ends, and says what it
declares and which files it is made of, or raises what a start would raise. So nothing that is wrong
with it touches what runs.

**The driver** keeps one Spark session, and runs one query after the other in it: a change costs the
end of one query and the start of another, not that of a JVM. State, sinks and offsets go on from
the checkpoint, as after any restart: what an epoch had under way runs again, by the new code. The
function's own module reaches the workers as an artefact (`run.versions`); for one that it imports
they are started anew. A query that fails leaves the driver waiting for the next change.

Relies on Spark running on this machine: a `master` in `[spark]` is left out.
"""

import hashlib
import importlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, ConfigError, Restart
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.schema import StateSchema, describe
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.opened import OpenPipeline, check_fit, check_sinks, packages_missing
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.config import PipelineConfig, of_document
from catchwater.pipeline.run.driver import (
    Stop,
    end_group,
    python_path,
    run_in,
    scratch,
    settings_of,
    stop_requested,
    zygote,
)
from catchwater.pipeline.run.versions import (
    declared_in,
    find_module,
    name_of,
    part_sha256,
    source_of,
)
from catchwater.pipeline.spark import session
from catchwater.pipeline.spark.session import JvmEnded
from catchwater.pipeline.workers import PRINTS
from catchwater.recovery.checkpoint import last_commit
from catchwater.recovery.folder import key_part
from catchwater.recovery.ledger import FOLDER, EpochEntry, Ledger
from catchwater.sinks.base import OutputRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGAIN_S = 2.0
"""How long a driver waits with a query that failed at something outside, such as a broker."""
_POLL_S = 0.1
SHOWN = 20
"""How many outputs of a sink one look shows."""
_COPY = re.compile(r" \(\S+/code/[0-9a-f]{64}\.py\)")
_MOST_PRINTED = 64 << 20
"""The file of prints begins anew when it has so many bytes, all of them shown."""
_REFUSED = (2, 5)

Load = Callable[[], PipelineConfig]


# A look at what lies on disk.


class Declared(msgspec.Struct, frozen=True):
    """One function of the chain, as its file declares it."""

    name: str
    version: int
    module: str
    part: str
    """SHA-256 of its part of that module."""
    schema: StateSchema


class Snapshot(msgspec.Struct, frozen=True):
    """A pipeline as its files are now."""

    pipeline: str
    folder: str
    checkpoint: str
    bootstrap: str
    secured: bool
    topics: list[str]
    """What it reads, its tables' topics included."""
    input: str
    """The first of its topics."""
    key: list[str]
    """The fields that make the first function's key."""
    sinks: dict[str, str]
    """Sink → kind and target."""
    functions: list[Declared]
    files: dict[str, str]
    """Path of each file of the user's that it is made of → SHA-256."""
    settings: str
    """SHA-256 of all that is no code."""

    def changed(self, before: "Snapshot") -> list[str]:
        """What is other than before: functions by name, and modules that they import."""
        then = {each.name: each for each in before.functions}
        names = [each.name for each in self.functions if then.get(each.name) != each]
        return names + [Path(path).name for path in self._other_files(before)]

    def needs_fresh_workers(self, before: "Snapshot") -> bool:
        """Whether a module changed that workers import by themselves, and only once."""
        return bool(self._other_files(before))

    def _other_files(self, before: "Snapshot") -> list[str]:
        own = {each.module for each in self.functions}
        differ = self.files.keys() ^ before.files.keys()
        differ |= {p for p, digest in self.files.items() if before.files.get(p, digest) != digest}
        return sorted(path for path in differ if path not in own)


def look(load: Load) -> Snapshot:
    """What a start would run now, without starting it. Raises what a start would refuse."""
    sys.dont_write_bytecode = True
    config = load()
    pipeline = OpenPipeline(config)
    specs = pipeline.specs
    check_fit(config, specs)
    check_sinks(config, specs)
    for error in packages_missing(config, specs).values():
        raise error
    versions.check_identity(config.checkpoint, pipeline.identity(), pipeline.doubt)
    ledger = versions.load(config.checkpoint)
    for spec in specs:
        versions.check_continues(config.checkpoint, ledger, spec)
    options = pipeline.options
    functions = [_declared(spec) for spec in specs]
    return Snapshot(
        pipeline=pipeline.name,
        folder=str(config.folder.resolve()),
        checkpoint=str(config.checkpoint),
        bootstrap=options.bootstrap,
        secured="kafka.security.protocol" in config.source,
        topics=sorted({*options.topics, *config.tables.values()}),
        input=next(iter(options.topics), ""),
        key=list(specs[0].key),
        sinks={name: f"{each.kind} {each.place}" for name, each in config.every_sink.items()},
        functions=functions,
        files={str(path): _sha256(path) for path in _files_of(config, functions)},
        settings=hashlib.sha256(repr((config, sorted(config.source.items()))).encode()).hexdigest(),
    )


def _declared(spec: FunctionSpec) -> Declared:
    _, file = declared_in(spec.target)
    part = part_sha256(source_of(spec.target), name_of(spec.target))
    return Declared(spec.name, spec.version, str(file.resolve()), part, describe(spec))


def _files_of(config: PipelineConfig, functions: Sequence[Declared]) -> Iterator[Path]:
    """The files of the modules that were imported from the pipeline's folder, and the functions'.

    What is installed is not the user's to save.
    """
    folder = config.folder.resolve()
    found = {Path(each.module) for each in functions}
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if file and is_the_users(path := Path(file).resolve(), folder):
            found.add(path)
    yield from sorted(found)


def is_the_users(path: Path, folder: Path) -> bool:
    """Whether it is a module in the pipeline's folder, and not in an environment there."""
    if path.suffix != ".py" or not path.is_relative_to(folder):
        return False
    parts = path.relative_to(folder).parts
    return "site-packages" not in parts and not any(part.startswith(".") for part in parts[:-1])


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_module(named: str, bootstrap: str) -> PipelineConfig:
    """A pipeline around the functions of a module that has no file: `cards`, `cards.py:CardRisk`.

    It reads the topic NAME-in, writes NAME-out, and keeps what it has in `.catchwater`. Raises
    `ConfigError`.
    """
    module_name, _, wanted = named.partition(":")
    folder = Path(module_name).resolve().parent if module_name.endswith(".py") else Path().resolve()
    module = find_module(Path(module_name).stem if "/" in module_name or module_name.endswith(".py")
                         else module_name, folder)  # fmt: skip
    own = [
        (name, each) for name, each in vars(module).items()
        if "__catchwater__" in getattr(each, "__dict__", {})
        and getattr(each, "__module__", None) == module.__name__
        and wanted in ("", name)
    ]  # fmt: skip
    if len(own) != 1:
        has = ", ".join(name for name, _ in own) or "none"
        raise ConfigError(
            f"The module {module.__name__!r} should declare one function to run"
            f"{f' named {wanted!r}' if wanted else ''}; it has {has}.",
            hint="Name one, as in cards.py:CardRisk, or write a pipeline's file: catchwater init.",
        )
    name, target = own[0]
    spec = spec_of(target)
    document = {
        "pipeline": {
            "function": f"{module.__name__}:{name}",
            "checkpoint": f".catchwater/{key_part(spec.name)}",
        },
        "source": {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": f"{spec.name}-in",
            "startingOffsets": "earliest",
        },
        "sink": {"out": {"topic": f"{spec.name}-out"}},
    }
    return of_document(named, folder, document, os.environ)


# The driver.


class Order(msgspec.Struct, frozen=True):
    """A change that the driver is to go on with; the first, without one, lets it begin."""

    what: str = ""
    saved_ms: int = 0
    fresh_workers: bool = False


class Orders:
    """The lines that the driver's parent writes; at their end the driver ends with all it has."""

    def __init__(self, descriptor: int = 0) -> None:
        self._lines = os.fdopen(descriptor, "rb", closefd=False)
        self._come = threading.Event()
        self._newest: Order | None = None
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    @property
    def waiting(self) -> bool:
        """Whether one has come that was not taken."""
        return self._come.is_set()

    def take(self) -> Order | None:
        """The newest, which stands for all before it."""
        self._come.clear()
        found, self._newest = self._newest, None
        return found

    def _listen(self) -> None:
        for line in self._lines:
            order = msgspec.json.decode(line, type=Order)
            before = self._newest
            if before is not None and before.fresh_workers:
                order = msgspec.structs.replace(order, fresh_workers=True)
            self._newest = order
            self._come.set()
        end_group()


class Tell:
    """Lines for the person at the terminal: outputs on stdout, all else on stderr."""

    def __init__(self, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    def say(self, who: str, text: str) -> None:
        """A line under a name."""
        for line in text.splitlines() or [""]:
            self._err.write(f"{who:<9} {line}\n")
        self._err.flush()

    def output(self, sink: str, text: str) -> None:
        """A row that a sink was given."""
        self._out.write(f"{sink:<9} {text}\n")
        self._out.flush()

    def error(self, error: CatchwaterError) -> None:
        """In one line, and its hint."""
        # Workers run a copy; the module's name, which stands before it, says whose it is.
        self.say("error", _COPY.sub("", " ".join(str(error).split())))
        if error.hint:
            self.say("hint", " ".join(error.hint.split()))


class Prints:
    """What workers have printed since the last look, in whole lines."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self._path = path
        self._at = 0
        self._part = b""

    def take(self) -> list[str]:
        """The new lines."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        self._at += len(new)
        *lines, self._part = (self._part + new).split(b"\n")
        if self._at > _MOST_PRINTED:
            os.truncate(self._path, 0)
            self._at = 0
        return [line.decode(errors="replace") for line in lines]


def drive(load: Load, clock: Clock = SYSTEM) -> None:
    """Run the pipeline and go on with what `Orders` say, until SIGTERM.

    Raises `JvmEnded`, and what a start of Spark raises.
    """
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a module saved twice a second is not taken twice
    orders, tell = Orders(), Tell()
    config = load()
    session.check_packages()
    session.find_java()
    local = {key: value for key, value in config.spark.items() if key != "master"}
    log_path = config.checkpoint / FOLDER / "spark.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with (
        session.environment_kept(),
        scratch(clock) as own,
        stop_requested() as stop,
        log_path.open("ab") as log,
        ThreadPoolExecutor(1, "start-spark") as beside_us,
        zygote(python_path(config)) as python,
    ):
        prints = Prints(own.path / PRINTS)
        starting = beside_us.submit(
            session.start, config.name or config.functions[0], tasks=config.tasks, quick=True,
            log=log, keep_open=(own.descriptor,), scratch=own.path,
            python_path=python_path(config), python=python, conf=settings_of(config) | local,
        )  # fmt: skip
        try:
            import catchwater.pipeline.run.run  # noqa: F401  (takes as long as the JVM does)

            spark = starting.result()
            session.start_workers(spark, config.tasks)
            with session.alive(spark):
                _Driver(spark, load, orders, prints, tell, stop, clock).run()
        finally:
            if not starting.exception():
                session.stop(starting.result())


class _Driver:
    """One query after the other in one session."""

    def __init__(
        self, spark: "SparkSession", load: Load, orders: Orders, prints: Prints, tell: Tell,
        stop: Stop, clock: Clock,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._load = load
        self._orders = orders
        self._prints = prints
        self._tell = tell
        self._stop = stop
        self._clock = clock
        self._order: Order | None = None
        self._said = ""
        """The last failure, until a query runs."""
        self._runs = False
        """Whether the query of this life is under way."""

    def run(self) -> None:
        """Until a stop is asked for. Raises `JvmEnded`."""
        # Broker and topics may still be on their way.
        while not self._stop.requested and not self._orders.waiting:
            self._stop.pause(self._clock, _POLL_S)
        config = self._take_over(self._load())
        while not self._stop.requested:
            failure = self._live(config)
            if self._orders.waiting:
                config = self._take_over(config)
            elif failure is not None and not self._stop.requested:
                if str(failure) != self._said:  # what is tried again and again is said once
                    self._tell.error(failure)
                self._said = str(failure)
                self._wait(failure)
                config = self._take_over(config)

    def _live(self, config: PipelineConfig) -> CatchwaterError | None:
        """One query until it is to end; what failed it."""
        self._runs = False
        life = Stop()
        try:
            run_in(
                self._spark, config, life, partial(self._beside, config, life), self._clock,
                follow=self._follow,
            )  # fmt: skip
        except JvmEnded:
            raise
        except CatchwaterError as error:
            return error
        finally:
            self._show_prints()
        return None

    def _take_over(self, config: PipelineConfig) -> PipelineConfig:
        """Read what lies on disk now."""
        self._order = self._orders.take()
        if self._order is not None and self._order.fresh_workers:
            # Spark keeps workers apart whose environments differ.
            environment: dict[str, str] = self._spark.sparkContext.environment
            environment["CATCHWATER_CODE"] = self._clock.token()
        forget(config.folder)
        return self._load()

    def _wait(self, failure: CatchwaterError) -> None:
        """For a change that may mend it; of what may mend itself, a moment."""
        passes = failure.restart is Restart.AGAIN and failure.exit_code not in _REFUSED
        if not passes:
            self._tell.say("dev", "the pipeline waits for a change that mends it")
        until_s = self._clock.monotonic_s() + AGAIN_S
        while not self._stop.requested and not self._orders.waiting:
            left_s = until_s - self._clock.monotonic_s()
            if passes and left_s <= 0:
                return
            self._stop.pause(self._clock, _POLL_S)

    def _beside(self, config: PipelineConfig, life: Stop) -> None:
        if not self._runs:
            self._runs, self._said = True, ""
            self._say_running(config)
        self._show_prints()
        life.requested = life.requested or self._stop.requested or self._orders.waiting

    def _say_running(self, config: PipelineConfig) -> None:
        order, self._order = self._order, None
        last = last_commit(config.checkpoint)
        entry = Ledger(config.checkpoint).read(last) if last >= 0 else None
        where = "from the beginning" if entry is None else (
            f"behind epoch {last}, with the state of {entry.total('keys')} keys"
        )  # fmt: skip
        if order is None or not order.what:
            self._tell.say("dev", f"it runs, {where}")
            return
        took_s = (self._clock.now_ms() - order.saved_ms) / 1000
        self._tell.say("dev", f"{order.what}: it goes on {where}, {took_s:.1f} s after the save")

    def _show_prints(self) -> None:
        for line in self._prints.take():
            self._tell.say("print", line)

    def _follow(self, pipeline: OpenPipeline, entries: Sequence[EpochEntry]) -> None:
        """Show what the sinks were given."""
        self._show_prints()
        for name, sink in pipeline.sinks.items():
            total = sum(each.sinks[name].records for each in entries if name in each.sinks)
            rows = (row for each in entries if total for row in sink.truth.rows(each.epoch))
            for row, _ in zip(rows, range(SHOWN), strict=False):
                self._tell.output(name, shown(row.record))
            if total > SHOWN:
                self._tell.output(name, f"… and {total - SHOWN} more")


def shown(record: OutputRecord) -> str:
    """An output in a line: its text, or how long it is where that is none."""
    value = record.value
    text = f"{len(value)} bytes, {value[:16].hex()}…"
    with suppress(UnicodeDecodeError):
        decoded = value.decode()
        text = decoded if decoded.isprintable() else text
    return f"retracted: {text}" if record.retracts else text


def forget(folder: Path) -> None:
    """Let the user's modules be imported anew, those that were loaded from artefacts too."""
    within = folder.resolve()
    for name, module in [*sys.modules.items()]:
        file = inspect.getattr_static(module, "__file__", None)
        loaded = inspect.getattr_static(module, "__catchwater_code__", None)
        if loaded or (isinstance(file, str) and is_the_users(Path(file).resolve(), within)):
            del sys.modules[name]
    importlib.invalidate_caches()


def key_of(value: bytes, fields: Sequence[str]) -> bytes:
    """The key of a JSON event for its record, as producers would have it. Raises `ConfigError`."""
    try:
        event: Any = msgspec.json.decode(value)
        parts = [event[name] for name in fields]
    except (msgspec.DecodeError, KeyError, TypeError):
        wanted: Mapping[str, str] = dict.fromkeys(fields, "…")
        raise ConfigError(
            f"{value.decode(errors='replace')!r} is no event: a line is JSON with "
            f"{', '.join(fields)}, such as {msgspec.json.encode(wanted).decode()}."
        ) from None
    return ",".join(map(str, parts)).encode()
