"""What may go on with a checkpoint: its pipeline, and the code and versions of its functions.

State is found again by the function's name, offsets by the topic's, marks by the sink's. So a
checkpoint is bound to the pipeline, functions, shards, topics and sinks it was begun with
(`catchwater/pipeline.json`), and a start with others is refused before Spark touches anything. A
sink may have moved: to a target that holds all that was written to the one before.

The module that declares a function is copied into the checkpoint under the SHA-256 of its source.
Workers load that file and nothing else, and refuse one whose hash is another. Pickling a class by
reference would let a worker that imported it earlier, or that finds another copy on its path, run
old code without a word. Modules that the function's module imports are found on the path as usual.

Which of a module's functions a change concerns, its *part* says: the statements that make the
function and all that these name, directly or not, with every statement that may do more than bind
its names. A part may be too large, so that an unchanged function counts as changed; not too small.

`<checkpoint>/catchwater/versions.json` keeps, for every version and every change of its code, what
its state looks like, from which epoch on it ran, and the savepoint that was taken before it. Stored
state may stem from any of them (records are brought over when they are next touched), so another
version has to read them all: that is checked here, before anything is started. A version that was
rolled back is remembered as withdrawn. Where the pipeline's file still names it, the version that
came before runs from its artefact.
"""

import ast
import builtins
import hashlib
import importlib
import re
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import msgspec

from catchwater.config import CatchwaterError, ConfigError, Restart, nearest
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.schema import StateSchema, compare, describe
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.config import DEAD_LETTER
from catchwater.recovery import handover
from catchwater.recovery.handover import refuse_unfinished
from catchwater.recovery.ledger import FOLDER, Ledger, numbered, read_json, shown, write_whole
from catchwater.sinks.config import SinkConfig, target_of
from catchwater.values.events import EventValues

_LOADED = "__catchwater_code__"
"""The attribute of a module that says which artefact it was made from."""
_SOURCE = "__catchwater_source__"
"""The attribute of such a module that is its source: its checkpoint may be gone meanwhile."""
_NOT_THE_USERS = (
    "<",
    str(Path(__file__).parents[2]),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
)
"""How names of files begin that are not the user's."""
_QUIET = sys.stdlib_module_names | {"catchwater", "msgspec", "pydantic"}
"""What is imported from here has no effect on others when a module calls it, decorates with it, or
derives from it."""
_SEES_ALL = frozenset(
    {"eval", "exec", "compile", "globals", "locals", "vars", "__import__"}
    | {"sys", "importlib", "inspect"}
)
"""A function that names one of these may use anything in its module."""


class CodeChanged(CatchwaterError):
    """An artefact's bytes are not those it was published with."""

    restart = Restart.NEVER


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """Where a function's code lies and what it must be; pickles, and is short."""

    module: str
    name: str
    path: str
    sha256: str
    argv: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv))
    """The driver's arguments: a script that reads them while it is imported meets them again."""
    values: EventValues | None = None
    """How its events are encoded, as the pipeline says; None: in JSON."""
    table_values: tuple[tuple[str, EventValues], ...] = ()
    """How the rows of its tables are, those that are not in JSON."""
    copy: bytes = b""
    """The file itself, compressed, for machines that do not have it; empty: all do."""

    def travelling(self) -> Self:
        """The same for executors on other machines, whose disks are their own."""
        return replace(self, copy=zlib.compress(Path(self.path).read_bytes()))

    def load(self) -> FunctionSpec:
        """The function's declaration, from the artefact. Raises `CodeChanged`."""
        module = sys.modules.get(self.module)
        if module is None or getattr(module, _LOADED, None) != self.sha256:
            module = self._execute()
        spec = spec_of(getattr(module, self.name))
        if self.values is None and not self.table_values:
            return spec
        # Once, since it keeps what it decodes by.
        made = _WITH_VALUES.get(self)
        if made is None or made.target is not spec.target:
            made = _WITH_VALUES[self] = replace(
                spec, values=self.values, table_values=dict(self.table_values)
            )
        return made

    def part_sha256(self) -> str:
        """Of the function's part of its module; comments and its place there do not count."""
        return part_sha256(Path(self.path).read_bytes(), self.name)

    def _found(self) -> Path:
        """The file, which is brought to this machine's cache if it has to be."""
        path = Path(self.path)
        if not self.copy or path.exists():
            return path
        from catchwater.pipeline.spark.session import cache_folder

        here = cache_folder() / "code" / path.name
        if not here.exists():
            write_whole(here, zlib.decompress(self.copy))
        return here

    def _execute(self) -> Any:
        path = self._found()
        source = path.read_bytes()
        if hashlib.sha256(source).hexdigest() != self.sha256:
            raise CodeChanged(
                f"The code of {self.module}:{self.name} at {path} is not what was published.",
                hint="Start the pipeline again.",
            )
        found = spec_from_file_location(self.module, path)
        assert found is not None and found.loader is not None, "a .py file has a loader"
        module = module_from_spec(found)
        # Annotations are resolved through sys.modules, by the module's own name.
        with ExitStack() as undo:
            undo.callback(_put_back, self.module, sys.modules.get(self.module))
            sys.modules[self.module] = module
            with _importing(self.argv):
                found.loader.exec_module(module)
            undo.pop_all()
        setattr(module, _LOADED, self.sha256)
        setattr(module, _SOURCE, source)
        return module


def _put_back(name: str, module: ModuleType | None) -> None:
    """Half of a module is none: the one that was there before is there again."""
    del sys.modules[name]
    if module is not None:
        sys.modules[name] = module


_WITH_VALUES: dict[FunctionCode, FunctionSpec] = {}


def find_function(named: str, folder: Path) -> FunctionSpec:
    """The function `module:Class`, looked for in `folder` first. Raises `ConfigError`."""
    module_name, _, name = named.partition(":")
    if not module_name or not name.isidentifier():
        raise ConfigError(f"function = {named!r} is not of the form module:Class.")
    module = find_module(module_name, folder)
    target = getattr(module, name, None)
    if target is None:
        raise ConfigError(
            f"The module {module_name!r} ({module.__file__}) has no {name!r}.",
            hint=f"The nearest is {nearest(name, vars(module))}.",
        )
    return spec_of(target)


def find_module(name: str, folder: Path) -> ModuleType:
    """The user's module, looked for in `folder` first.

    Raises `ConfigError`, with the line, for any error of its own.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    _forget_another(name, folder)
    try:
        with _importing():
            return importlib.import_module(name)
    except CatchwaterError:  # a declaration says by itself what is wrong
        raise
    except SystemExit as error:
        raise ConfigError(
            f"The function's module {name!r} ends its process while it is imported{_line(error)}.",
            hint='Let it read arguments and call sys.exit under if __name__ == "__main__": its '
            "arguments here are those of this command.",
        ) from error
    except Exception as error:  # a module is the user's, and may raise anything
        absent = isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]
        why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"The function's module {name!r} cannot be imported: {why}{_line(error)}.",
            hint=f"It is looked for in {folder} and on the Python path." if absent else None,
        ) from error


def _forget_another(name: str, folder: Path) -> None:
    """Have the folder's module imported, where another pipeline's has the same name."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None or hasattr(module, _LOADED):
        return
    importlib.invalidate_caches()
    here = PathFinder.find_spec(name, [str(folder)])
    if here is not None and here.origin and Path(here.origin).resolve() != Path(file).resolve():
        del sys.modules[name]
        sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))


def _line(error: BaseException) -> str:
    """The innermost line of the user's that led to the error, to end a sentence with."""
    if isinstance(error, SyntaxError):
        return ""  # it names its own
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f", at {own[-1].filename} line {own[-1].lineno}: {own[-1].line}" if own else ""


def publish(spec: FunctionSpec, checkpoint: Path) -> FunctionCode:
    """Copy the module that declares the function into the checkpoint. Raises `ConfigError`."""
    target = spec.target
    module, source = declared_in(target)[0], source_of(target)
    sha256 = hashlib.sha256(source).hexdigest()
    path = checkpoint / FOLDER / "code" / f"{sha256}.py"
    if not path.exists():
        write_whole(path, source)
    return FunctionCode(module, name_of(target), str(path), sha256)


def declared_in(target: Any) -> tuple[str, Path]:
    """The module that declares a function, as others import it, and its file.

    Raises `ConfigError` for one that is declared in no file, as in a notebook's cell.
    """
    module = sys.modules.get(target.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        raise ConfigError(
            f"The function {target.__qualname__} is declared in no file, and workers load a "
            "function from a copy of its file.",
            hint="Write the cell into a module beside the notebook (%%writefile cards.py) and "
            "import the function from there.",
        )
    if module.__name__ != "__main__":
        return module.__name__, Path(file)
    return (module.__spec__.name if module.__spec__ else Path(file).stem), Path(file)


def source_of(target: Any) -> bytes:
    """Of the module that declares a function. Raises `ConfigError` if it cannot be read."""
    module, file = declared_in(target)
    source = getattr(sys.modules[target.__module__], _SOURCE, None)
    if isinstance(source, bytes):
        return source
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"The function {target.__qualname__} of the module {module!r} is declared in {file}, "
            f"which cannot be read any more: {error.strerror}.",
            hint="Put the file back, or start Python anew.",
        ) from error


_IMPORTS = 0


@contextmanager
def _importing(argv: Sequence[str] | None = None) -> Iterator[None]:
    """While a module of the user's is imported, with these arguments in the place of our own."""
    global _IMPORTS
    _IMPORTS += 1
    before = sys.argv
    try:
        sys.argv = before if argv is None else [*argv]
        yield
    finally:
        sys.argv = before
        _IMPORTS -= 1


def is_importing() -> bool:
    """Whether a function's module is being imported, here or by a worker: nothing may run then."""
    return _IMPORTS > 0


def name_of(target: Any) -> str:
    """What the function's module calls it. Raises `ConfigError` if it has no name there."""
    if "<locals>" not in target.__qualname__:
        return str(target.__qualname__)
    for name, each in vars(sys.modules[target.__module__]).items():
        if each is target:
            return name
    raise ConfigError(
        f"The function {target.__qualname__} has no name in the module that makes it, "
        f"{target.__module__!r}, where workers look for it.",
        hint="Give it one there: name = made(…), and let function = name that module.",
    )


# The pipeline that a checkpoint belongs to.


class OtherPipeline(CatchwaterError):
    """The checkpoint was begun by a pipeline that this one cannot continue."""

    exit_code = 5


class Identity(msgspec.Struct, frozen=True):
    """What has to stay the same for the life of a checkpoint."""

    pipeline: str
    functions: list[str]
    """The chain's names, in order."""
    shards: int
    topics: list[str]
    sinks: dict[str, str]
    """Sink → what it writes to, by a name that no other target has (`sinks.config.target_of`)."""

    @staticmethod
    def read(checkpoint: Path) -> "Identity | None":
        """What the checkpoint is bound to, None if it is new. Raises `LedgerDamaged`."""
        return read_json(checkpoint / FOLDER / "pipeline.json", Identity)

    def write(self, checkpoint: Path) -> None:
        """Keep it as what the checkpoint is bound to."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_whole(checkpoint / FOLDER / "pipeline.json", text)

    def with_sink(self, sink: str, target: str) -> "Identity":
        """The same with another target of one sink."""
        return msgspec.structs.replace(self, sinks={**self.sinks, sink: target})


Doubts = Callable[[str, str], str]
"""Why this sink cannot have moved from the target it was bound to; empty: it has, or has not."""


def no_move(sink: str, was: str) -> str:
    """Nobody looks: another target is another one."""
    return "which is another target"


_WORDS = {
    "pipeline": "the pipeline",
    "functions": "the chain of functions",
    "shards": "the number of shards",
    "topics": "the input",
}
_HINTS = {"shards": "To change it, restore a savepoint into a new checkpoint: catchwater "
          "savepoint restore FILE NAME --into FOLDER --shards N."}  # fmt: skip
_OTHER_SINKS = (
    "Put them back as they were. To add one or take one away, restore a savepoint into a new "
    "checkpoint: catchwater savepoint restore FILE NAME --into FOLDER."
)


def bind(folder: Path, wanted: Identity, doubts: Doubts = no_move) -> None:
    """Bind the checkpoint to this pipeline; while nothing was begun in it, anew.

    A first start that failed, at a sink that was not there, must not hold on to that sink. Raises
    `OtherPipeline`.
    """
    ledger = Ledger(folder)
    epochs = [*numbered(folder / "offsets"), *ledger.epochs(), *ledger.recorded_epochs()]
    if epochs or handover.shadow_of(folder):
        claim(folder, wanted, doubts)
    else:
        refuse_unfinished(folder)
        wanted.write(folder)


def claim(checkpoint: Path, identity: Identity, doubts: Doubts = no_move) -> None:
    """Bind a new checkpoint to this pipeline, and one whose sinks have moved to where they are now.

    Raises `OtherPipeline` if it is bound to another, `RestoreUnfinished` if it is incomplete.
    """
    check_identity(checkpoint, identity, doubts)
    bound = Identity.read(checkpoint)
    if bound is not None and DEAD_LETTER in bound.sinks and DEAD_LETTER not in identity.sinks:
        identity = identity.with_sink(DEAD_LETTER, bound.sinks[DEAD_LETTER])
    if bound != identity:
        identity.write(checkpoint)


def rebind(checkpoint: Path, identity: Identity) -> None:
    """Bind a checkpoint that is bound to another pipeline, or to other targets."""
    identity.write(checkpoint)


def check_identity(checkpoint: Path, identity: Identity, doubts: Doubts = no_move) -> None:
    """Raise what `claim` raises; changes nothing."""
    refuse_unfinished(checkpoint)
    bound = Identity.read(checkpoint)
    if bound is None:
        return
    compared = [
        (w, getattr(bound, n), getattr(identity, n), _HINTS.get(n)) for n, w in _WORDS.items()
    ]
    # Dead letters may be added or left out; where they go is compared like any sink's target.
    was, now = ({*each.sinks} - {DEAD_LETTER} for each in (bound, identity))
    compared.append(("the set of sinks", sorted(was), sorted(now), _OTHER_SINKS))
    for words, before, wanted, hint in compared:
        if before != wanted:
            raise OtherPipeline(
                f"The checkpoint {shown(checkpoint)} cannot be continued: {words} was {before} and "
                f"is now {wanted}. Its state would be lost or misread; nothing was changed.",
                hint=hint or "Put it back as it was, or begin a new checkpoint in another folder.",
            )
    check_targets(checkpoint, bound, identity.sinks, doubts)


def check_targets(
    checkpoint: Path, bound: Identity, sinks: Mapping[str, str], doubts: Doubts = no_move
) -> None:
    """Raise `OtherPipeline` if a sink is to write elsewhere, and has not moved there whole."""
    for sink, wanted in sinks.items():
        was = bound.sinks.get(sink, wanted)
        if was != wanted and (doubt := doubts(sink, was)):
            raise OtherPipeline(
                f"The checkpoint {shown(checkpoint)} cannot be continued: the sink {sink!r} has "
                f"written to {was} so far, and is now to write to {wanted}, {doubt}. "
                "Nothing was changed.",
                hint="Put it back as it was. If it has moved, let the new target hold what the old "
                "one does, marks included; if it is to begin anew there: catchwater sink moved "
                f"FILE --sink {sink}.",
            )


def is_target(sink: SinkConfig, folder: Path, bound: str) -> bool:
    """Whether the sink writes to what a checkpoint is bound to.

    Checkpoints of earlier versions know no more than a topic, table, path or URL.
    """
    earlier = f"{sink.kind} {sink.named.partition('?')[0]}"
    return bound in (target_of(sink, folder), earlier)


# The ledger of versions.


ROLLBACK_MS = 86_400_000
"""For so long after an upgrade all is kept that taking its outputs back needs."""


class VersionDiffers(CatchwaterError):
    """The checkpoint is at another version of the function; it changes by an upgrade only."""

    exit_code = 5


class StateIncompatible(CatchwaterError):
    """Stored state cannot be read by the function as it is now."""

    exit_code = 5


class CodeGone(CatchwaterError):
    """An old version is to run, and its code, or what that imports, is not there any more."""

    exit_code = 5


class Version(msgspec.Struct, frozen=True):
    """One version of a function, with one state of its code, as it ran on a checkpoint."""

    function: str
    version: int
    module: str
    name: str
    code: str
    """SHA-256 of the module's source, which lies in `catchwater/code`."""
    schema: StateSchema
    from_epoch: int
    """The first epoch it ran."""
    since_ms: int
    savepoint: str = ""
    """The savepoint that was taken before it; empty: it was no upgrade."""
    shelf: str = ""
    """URL of the place where that lies."""
    part: str = ""
    """SHA-256 of the function's part of that source; empty: unknown, as older versions wrote it."""
    before: str = ""
    """The checkpoint that the version before it ran in, if that is another one."""

    def artefact(self, checkpoint: Path) -> FunctionCode:
        """The code, as it was published."""
        path = checkpoint / FOLDER / "code" / f"{self.code}.py"
        return FunctionCode(self.module, self.name, str(path), self.code)


class Versions(msgspec.Struct, frozen=True):
    """What `versions.json` holds."""

    history: list[Version] = []
    """Oldest first; the last one of a function is what runs."""
    withdrawn: list[Version] = []
    """Rolled back; none of their state is left."""
    generation: int = 0
    """Counts the times outputs were withdrawn: sinks know a writer from before by it."""

    def current(self, function: str) -> Version | None:
        """What runs now, None if it never ran."""
        return next((each for each in reversed(self.history) if each.function == function), None)

    def of(self, function: str) -> list[Version]:
        """Everything that stored state may stem from."""
        return [each for each in self.history if each.function == function]

    def added(self, *versions: Version) -> "Versions":
        """With these as what runs now."""
        return msgspec.structs.replace(self, history=[*self.history, *versions])


def load(checkpoint: Path) -> Versions:
    """The ledger, empty for a new checkpoint. Raises `LedgerDamaged`."""
    return read_json(_path(checkpoint), Versions) or Versions()


def rollback_from(checkpoint: Path, now_ms: int) -> int | None:
    """The first epoch that a rollback would take back, for as long as it is kept for one."""
    upgrades = [each for each in load(checkpoint).history if each.savepoint]
    if not upgrades or now_ms - upgrades[-1].since_ms > ROLLBACK_MS:
        return None
    return upgrades[-1].from_epoch


def store(checkpoint: Path, versions: Versions) -> None:
    """Keep the ledger, durably."""
    write_whole(_path(checkpoint), msgspec.json.encode(versions))


Function = tuple[FunctionSpec, FunctionCode]


def admit(
    checkpoint: Path, functions: Sequence[Function], epoch: int, now_ms: int
) -> list[Function]:
    """Let these functions go on with the checkpoint from this epoch on; what is to run.

    A first start and changed code of the same version are written down; of the functions of one
    module, those whose part of it has changed. Raises `VersionDiffers` for another version,
    `StateIncompatible` naming the field, `CodeGone`.
    """
    ledger = load(checkpoint)
    admitted, fresh = [], []
    for spec, code in functions:
        there = ledger.current(spec.name)
        if there is not None and _is_withdrawn(ledger, code):
            admitted.append(kept(checkpoint, there))
            continue
        check_continues(checkpoint, ledger, spec)
        if there is None or not _is_same(there, code):
            fresh.append(version_of(spec, code, epoch, now_ms))
        admitted.append((spec, code))
    if fresh:
        store(checkpoint, ledger.added(*fresh))
    return admitted


def check_continues(checkpoint: Path, ledger: Versions, spec: FunctionSpec) -> None:
    """Raise `VersionDiffers` or `StateIncompatible` unless the function can go on from there."""
    there = ledger.current(spec.name)
    if there is not None and there.version != spec.version:
        raise _differs(checkpoint, there, spec)
    check(checkpoint, ledger, spec)


def kept(checkpoint: Path, version: Version) -> Function:
    """A version from the code that the checkpoint keeps. Raises `CodeGone`."""
    code = version.artefact(checkpoint)
    try:
        return code.load(), code
    except Exception as error:  # the module, and what it imports, is the user's: it may raise any
        why = str(error) if isinstance(error, CatchwaterError | OSError) else repr(error)
        why = why.rstrip(".")
        raise CodeGone(
            f"Version {version.version} of {version.function!r} cannot be run from the code that "
            f"{checkpoint} keeps ({code.path}): {why}.",
            hint=f"Put the module {version.module} of version {version.version} back, and what it "
            "imports, beside the pipeline's file.",
        ) from error


def version_of(spec: FunctionSpec, code: FunctionCode, epoch: int, now_ms: int) -> Version:
    """A function as it is now, for the ledger."""
    return Version(
        function=spec.name,
        version=spec.version,
        module=code.module,
        name=code.name,
        code=code.sha256,
        schema=describe(spec),
        from_epoch=epoch,
        since_ms=now_ms,
        part=code.part_sha256(),
    )


def check(checkpoint: Path, ledger: Versions, spec: FunctionSpec) -> None:
    """Raise `StateIncompatible` unless the function reads what every version before has stored."""
    schema, migrations = describe(spec), spec.migrations()
    for old in ledger.of(spec.name):
        mended = old.version != spec.version and old.version in migrations
        problems = [p for p in compare(old.schema, schema) if not (mended and p.migratable)]
        if problems:
            raise StateIncompatible(
                f"Version {spec.version} of {spec.name!r} cannot read the state that version "
                f"{old.version} has stored in {shown(checkpoint)}: {'; '.join(map(str, problems))}."
                " Nothing was changed.",
                hint=_mend(old, spec, all(problem.migratable for problem in problems)),
            )


def check_reach(checkpoint: Path, epoch: int) -> None:
    """Raise `VersionDiffers` if going back to this epoch would lead behind an upgrade.

    What the sinks have of the epochs after it was written by another version.
    """
    for each in load(checkpoint).history:
        if each.savepoint and epoch + 1 < each.from_epoch:
            raise VersionDiffers(
                f"Version {each.version} of {each.function!r} took over at epoch "
                f"{each.from_epoch}; checkpoint {epoch} of {shown(checkpoint)} is from before.",
                hint="To go back to the version before: catchwater pipeline rollback FILE.",
            )


def _mend(old: Version, spec: FunctionSpec, migratable: bool) -> str:
    if not migratable:
        return "Keep it as it was: a key, or a state of its own, cannot be brought over."
    if old.version == spec.version:
        return f"Keep the field, or make it version {spec.version + 1} with a from_v{old.version}."
    return f"Keep the field, or give the function a from_v{old.version}(old: dict)."


def _differs(checkpoint: Path, there: Version, spec: FunctionSpec) -> VersionDiffers:
    return VersionDiffers(
        f"The checkpoint {shown(checkpoint)} cannot be continued: the function's version was "
        f"{there.version} and is now {spec.version}. Nothing was changed.",
        hint=f"catchwater pipeline upgrade FILE --to {spec.version}, or put version "
        f"{there.version} back.",
    )


def _is_withdrawn(ledger: Versions, code: FunctionCode) -> bool:
    """Whether this very code was rolled back; mended code of the same version is another."""
    gone = any(_is_same(each, code) for each in ledger.withdrawn)
    return gone and not any(_is_same(each, code) for each in ledger.history)


def _is_same(version: Version, code: FunctionCode) -> bool:
    """Whether that is the function as this code makes it; the rest of its module may differ."""
    if version.code == code.sha256 or not version.part:
        return version.code == code.sha256
    return (version.module, version.name, version.part) == (
        code.module,
        code.name,
        code.part_sha256(),
    )


def _path(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "versions.json"


# A function's part of its module.


def part_sha256(source: bytes, name: str) -> str:
    """SHA-256 of what a module says of the function of this name."""
    statements = ast.parse(source).body
    quiet = {*dir(builtins)} - _SEES_ALL
    imports = (each for each in statements if isinstance(each, ast.Import | ast.ImportFrom))
    quiet.update(n for each in imports if _module_of(each) in _QUIET for n in _bound(each))
    made = [each for each in statements if not isinstance(each, ast.Import | ast.ImportFrom)]
    quiet.difference_update(bound for each in made for bound in _bound(each))
    classes = {each.name for each in made if isinstance(each, ast.ClassDef)}
    watches_subclasses = "__init_subclass__" in source.decode()
    bases = quiet | (set() if watches_subclasses else classes) | {*dir(builtins)}
    makers: dict[str, list[int]] = {}
    waiting = []
    for index, each in enumerate(statements):
        for bound in _bound(each):
            makers.setdefault(bound, []).append(index)
        if not _is_inert(each, quiet, bases):
            waiting.append(index)
    part: set[int] = set()
    waiting += makers.get(name, range(len(statements)))
    while waiting:
        index = waiting.pop()
        if index not in part:
            part.add(index)
            named = {*_named(statements[index])}
            if named & _SEES_ALL and not isinstance(statements[index], ast.Import | ast.ImportFrom):
                waiting += range(len(statements))
            waiting += (maker for each in named for maker in makers.get(each, ()))
    dumped = "\n".join(ast.dump(statements[index]) for index in sorted(part))
    return hashlib.sha256(dumped.encode()).hexdigest()


def _module_of(statement: ast.Import | ast.ImportFrom) -> str:
    """The top-level package that it imports from; empty: of several, or beside this module."""
    if isinstance(statement, ast.ImportFrom):
        return "" if statement.level else (statement.module or "").partition(".")[0]
    found = {each.name.partition(".")[0] for each in statement.names}
    return found.pop() if len(found) == 1 else ""


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names of the module that it binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for each in ast.walk(statement):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            yield each.id
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.alias):
            yield each.asname or each.name.partition(".")[0]


def _is_inert(statement: ast.stmt, quiet: set[str], bases: set[str]) -> bool:
    """Whether it does nothing but bind its names: then it counts for those who use them.

    `quiet` may be called, `bases` derived from.
    """
    run: list[ast.expr | None] = []
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            run += [*statement.args.defaults, *statement.args.kw_defaults]
            called = statement.decorator_list
        case ast.ClassDef():
            run += (each.value for each in statement.keywords)
            called = [*statement.decorator_list]
            called += (k.value for k in statement.keywords if k.arg in (None, "metaclass"))
            derived = all(_root(each) in bases for each in statement.bases)
            if not (derived and all(_is_inert(each, quiet, bases) for each in statement.body)):
                return False
        case ast.Assign(targets=targets, value=value):
            run, called = [*targets, value], []
        case ast.AnnAssign(target=target, value=declared):
            run, called = [target, declared], []
        case ast.Import() | ast.ImportFrom():
            stars = any(each.name == "*" for each in statement.names)
            return not stars and _module_of(statement) in _QUIET - {"__future__"}
        case ast.Expr(ast.Constant()) | ast.Pass():
            return True
        case _:
            return False
    return all(_root(each) in quiet for each in called) and not any(
        _acts(each, quiet) for part in run if part is not None for each in ast.walk(part)
    )


def _acts(expression: ast.AST, quiet: set[str]) -> bool:
    """Whether evaluating this alone may change something that has a name already."""
    if isinstance(expression, ast.Attribute | ast.Subscript):
        return not isinstance(expression.ctx, ast.Load)
    return isinstance(expression, ast.Call) and _root(expression) not in quiet


def _root(expression: ast.expr) -> str | None:
    """`a` of `a.b(c)[d].e()`."""
    while isinstance(expression, ast.Attribute | ast.Subscript | ast.Call):
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def _named(statement: ast.stmt) -> Iterator[str]:
    """All names in it, those in texts too: annotations, and names that are looked up."""
    docstrings = {id(each.value) for each in ast.walk(statement) if isinstance(each, ast.Expr)}
    for each in ast.walk(statement):
        if isinstance(each, ast.Name):
            yield each.id
        elif (
            id(each) not in docstrings
            and isinstance(each, ast.Constant)
            and isinstance(each.value, str)
        ):
            yield from re.findall(r"[^\W\d]\w*", each.value)
