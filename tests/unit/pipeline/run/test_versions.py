"""Which versions a checkpoint has seen, and whether another one may go on with it."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from catchwater.config import ConfigError
from catchwater.pipeline.run.versions import (
    CodeGone,
    Function,
    StateIncompatible,
    VersionDiffers,
    Versions,
    admit,
    check_reach,
    find_function,
    kept,
    load,
    publish,
    source_of,
    store,
    version_of,
)

CODE = """
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Event:
    card: str
    at: int

@dataclass
class State:
    {fields}

@function(name="counter", version={version}, key="card", event_time="at")
class Counter(Keyed[Event, State, Event]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[Event]:
        return ()
    {more}
"""
TALLY = """
@function(name="tally", key="card", event_time="at")
class Tally(Keyed[Event, State, Event]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[Event]:
        return ()
"""
FROM_V1 = """
    @staticmethod
    def from_v1(old: dict) -> State:
        return State()
"""


@pytest.fixture(autouse=True)
def _path_kept() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


class Desk:
    """A pipeline's folder in which the function's module is rewritten again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self._count = 0

    def written(self, fields: str, version: int = 1, more: str = "") -> Function:
        self._count += 1
        name = f"counter_{self.folder.name.replace('-', '_')}_{self._count}"
        (self.folder / f"{name}.py").write_text(
            dedent(CODE).format(fields=fields, version=version, more=more)
        )
        spec = find_function(f"{name}:Counter", self.folder)
        return spec, publish(spec, self.checkpoint)

    def of_one_module(self, body: str) -> list[Function]:
        """Two functions of one module, of which the second does this."""
        name = f"both_{self.folder.name.replace('-', '_')}"
        text = dedent(CODE).format(fields="seen: int = 0", version=1, more="")
        both = text + TALLY.replace("return ()", body)
        (self.folder / f"{name}.py").write_text(both)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        specs = [find_function(f"{name}:{each}", self.folder) for each in ("Counter", "Tally")]
        return [(spec, publish(spec, self.checkpoint)) for spec in specs]

    def admit(self, function: Function, epoch: int = 0) -> Function:
        (admitted,) = admit(self.checkpoint, [function], epoch, 1000)
        return admitted


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_first_start_writes_down_what_runs(desk: Desk) -> None:
    spec, code = desk.admit(desk.written("seen: int = 0"))
    current = load(desk.checkpoint).current("counter")
    assert current is not None
    assert (current.version, current.code, current.from_epoch) == (1, code.sha256, 0)
    assert current.artefact(desk.checkpoint).load().name == spec.name


def test_compatible_code_of_the_same_version_goes_on(desk: Desk) -> None:
    desk.admit(desk.written("seen: int = 0"))
    desk.admit(desk.written("seen: float = 0.0"), epoch=7)
    assert [each.from_epoch for each in load(desk.checkpoint).of("counter")] == [0, 7]


def test_of_one_module_only_the_function_that_was_changed_is_written_down(desk: Desk) -> None:
    """All functions of a module had the same code, and a change of one was one of all."""
    first, second = desk.of_one_module("return ()")
    admit(desk.checkpoint, [first, second], 0, 1000)
    changed = desk.of_one_module("return []")
    assert [code.sha256 for _, code in changed] != [code.sha256 for _, code in (first, second)]
    admitted = admit(desk.checkpoint, changed, 7, 2000)
    assert admitted == list(changed), "what runs is the new module"
    ledger = load(desk.checkpoint)
    assert [each.from_epoch for each in ledger.of("counter")] == [0]
    assert [each.from_epoch for each in ledger.of("tally")] == [0, 7]


def test_a_ledger_that_knows_no_parts_takes_another_module_for_a_change(desk: Desk) -> None:
    function = desk.written("seen: int = 0")
    old = msgspec.structs.replace(version_of(*function, epoch=0, now_ms=0), part="")
    store(desk.checkpoint, Versions([old]))
    desk.admit(function, epoch=3)
    assert load(desk.checkpoint).history == [old]
    desk.admit(desk.written("seen: int = 0", more="# no change"), epoch=4)
    assert [each.from_epoch for each in load(desk.checkpoint).history] == [0, 4]


def test_an_incompatible_state_is_refused_and_the_field_named(desk: Desk) -> None:
    first = desk.written("seen: str = ''")
    desk.admit(first)
    with pytest.raises(StateIncompatible, match="seen: it was str and is int") as error:
        desk.admit(desk.written("seen: int = 0"))
    assert error.value.exit_code == 5
    desk.admit(first)


def test_state_of_every_code_that_ever_ran_must_be_read(desk: Desk) -> None:
    desk.admit(desk.written("seen: str = ''"))
    desk.admit(desk.written("other: bytes = b''"))
    with pytest.raises(StateIncompatible, match="it was str and is int"):
        desk.admit(desk.written("seen: int = 0"))


def test_another_version_needs_an_upgrade(desk: Desk) -> None:
    desk.admit(desk.written("seen: int = 0"))
    with pytest.raises(VersionDiffers, match="version was 1 and is now 2"):
        desk.admit(desk.written("seen: int = 0", version=2))


def test_code_that_was_rolled_back_gives_way_to_the_version_before(desk: Desk) -> None:
    first, bad = desk.written("seen: int = 0"), desk.written("seen: int = 0", version=2)
    desk.admit(first)
    store(
        desk.checkpoint,
        Versions(load(desk.checkpoint).history, [version_of(*bad, epoch=3, now_ms=0)]),
    )
    spec, code = desk.admit(bad)
    assert (spec.version, code.sha256) == (1, first[1].sha256)
    # Mended code of the same version is not what was rolled back.
    with pytest.raises(VersionDiffers):
        desk.admit(desk.written("seen: int = 1", version=2))
    Path(code.path).unlink()
    del sys.modules[code.module]
    with pytest.raises(CodeGone, match="Version 1 of 'counter'") as error:
        desk.admit(bad)
    assert "Put the module counter_" in str(error.value.hint)


def test_an_older_checkpoint_may_not_lie_behind_an_upgrade(desk: Desk) -> None:
    first, second = desk.written("seen: int = 0"), desk.written("seen: int = 0", version=2)
    desk.admit(first)
    upgraded = msgspec.structs.replace(version_of(*second, epoch=5, now_ms=0), savepoint="before")
    store(desk.checkpoint, load(desk.checkpoint).added(upgraded))
    check_reach(desk.checkpoint, 4)
    with pytest.raises(VersionDiffers, match="took over at epoch 5; checkpoint 3"):
        check_reach(desk.checkpoint, 3)


@pytest.mark.parametrize("line", ["1 / 0", "no_such_name", "raise SystemError('odd')"])
def test_old_code_that_cannot_be_loaded_any_more_is_named_whatever_it_raises(
    tmp_path: Path, line: str
) -> None:
    gate = tmp_path / "gate_of_old_code.py"
    gate.write_text("")
    (tmp_path / "old_code.py").write_text(
        f"import gate_of_old_code\n{CODE.format(fields='n: int = 0', version=1, more='')}"
    )
    spec = find_function("old_code:Counter", tmp_path)
    code = publish(spec, tmp_path)
    gate.write_text(line)
    for name in ("old_code", "gate_of_old_code"):
        del sys.modules[name]
    with pytest.raises(CodeGone, match="cannot be run from the code") as gone:
        kept(tmp_path, version_of(spec, code, 0, 0))
    assert gone.value.exit_code == 5
    assert "Put the module old_code of version 1 back" in str(gone.value.hint)
    assert "old_code" not in sys.modules, "half of a module is none"


def test_a_function_outlives_the_checkpoint_that_its_code_was_loaded_from(tmp_path: Path) -> None:
    """As in a notebook: the pipeline ran, its checkpoint was deleted, and it is begun anew."""
    file = tmp_path / "begun_anew.py"
    file.write_text(CODE.format(fields="n: int = 0", version=1, more=""))
    first = publish(find_function("begun_anew:Counter", tmp_path), tmp_path / "first")
    loaded = first.load()
    shutil.rmtree(tmp_path / "first")
    for spec in (loaded, find_function("begun_anew:Counter", tmp_path)):
        again = publish(spec, tmp_path / "second")
        assert (again.sha256, again.load().name) == (first.sha256, loaded.name)


@pytest.mark.parametrize("is_gone", [False, True])
def test_each_folder_has_its_own_module_of_a_name(tmp_path: Path, is_gone: bool) -> None:
    """As in a notebook that runs one pipeline after the other."""
    for version in (1, 2):
        folder = tmp_path / str(version)
        folder.mkdir()
        code = CODE.format(fields="n: int = 0", version=version, more="")
        (folder / f"same_{is_gone}.py").write_text(code)
        spec = find_function(f"same_{is_gone}:Counter", folder)
        assert source_of(spec.target).decode() == code
        assert find_function(f"same_{is_gone}:Counter", folder).target is spec.target
        if is_gone:
            shutil.rmtree(folder)


def test_a_module_whose_file_is_gone_since_it_was_imported_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gone_since.py"
    file.write_text(CODE.format(fields="n: int = 0", version=1, more=""))
    spec = find_function("gone_since:Counter", tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match=r"gone_since\.py, which cannot be read any more"):
        publish(spec, tmp_path / "checkpoint")
