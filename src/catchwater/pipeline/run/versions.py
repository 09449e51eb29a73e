"""The version ledger: which versions of its functions a checkpoint has seen, and which runs now.

`<checkpoint>/catchwater/versions.json` keeps, for every version and every change of its code, what
its state looks like, from which epoch on it ran, and the savepoint that was taken before it. Stored
state may stem from any of them (records are brought over when they are next touched), so another
version has to read them all: that is asked here, before anything is started.

A version that was rolled back is remembered as withdrawn. Where the pipeline's file still names it,
the version that came before runs from its artefact.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.schema import StateSchema, compare, describe
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.artefact import FunctionCode
from catchwater.recovery.ledger import FOLDER, read_json, write_whole


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
        if there is not None and there.version != spec.version:
            raise _differs(checkpoint, there, spec)
        check(checkpoint, ledger, spec)
        if there is None or not _is_same(there, code):
            fresh.append(version_of(spec, code, epoch, now_ms))
        admitted.append((spec, code))
    if fresh:
        store(checkpoint, ledger.added(*fresh))
    return admitted


def kept(checkpoint: Path, version: Version) -> Function:
    """A version from the code that the checkpoint keeps. Raises `CodeGone`."""
    code = version.artefact(checkpoint)
    try:
        return code.load(), code
    except Exception as error:  # the module, and what it imports, is the user's: it may raise any
        told = str(error) if isinstance(error, CatchwaterError | OSError) else repr(error)
        told = told.rstrip(".")
        raise CodeGone(
            f"Version {version.version} of {version.function!r} cannot be run from the code that "
            f"{checkpoint} keeps ({code.path}): {told}.",
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
                f"{old.version} has stored in {checkpoint}: {'; '.join(map(str, problems))}. "
                "Nothing was changed.",
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
                f"{each.from_epoch}; checkpoint {epoch} of {checkpoint} is from before.",
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
        f"The checkpoint {checkpoint} cannot be continued: the function's version was "
        f"{there.version} and is now {spec.version}. Nothing was changed.",
        hint=f"catchwater pipeline upgrade FILE --to {spec.version}, or put version "
        f"{there.version} back.",
    )


def _is_withdrawn(ledger: Versions, code: FunctionCode) -> bool:
    """Whether this very code was rolled back; mended code of the same version is another."""
    gone = any(_is_same(each, code) for each in ledger.withdrawn)
    return gone and not any(_is_same(each, code) for each in ledger.history)


def _is_same(version: Version, code: FunctionCode) -> bool:
    """Whether that is the function as this code makes it, whatever else its module says."""
    if version.code == code.sha256 or not version.part:
        return version.code == code.sha256
    return (version.module, version.name, version.part) == (
        code.module,
        code.name,
        code.part_sha256(),
    )


def _path(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "versions.json"
