"""One file out, the same savepoint in; nothing that was tampered with."""

import io
import tarfile
from pathlib import Path

import pytest

from catchwater.clock import Clock
from catchwater.recovery.savepoint.create import SavepointExists, create
from catchwater.recovery.savepoint.export import FileExists, export_file, import_file, read_head
from catchwater.recovery.savepoint.format import SavepointDamaged
from catchwater.recovery.savepoint.store import Shelf
from catchwater.recovery.savepoint.verify import verify

from .conftest import Made


@pytest.fixture
def exported(made: Made, shelf: Shelf, tmp_path: Path) -> Path:
    create(made.source, shelf, "first")
    path = tmp_path / "first.tar"
    assert export_file(shelf, "first", path) == path.stat().st_size
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Shelf:
    return Shelf.at((tmp_path / "elsewhere").as_uri(), Clock(3))


def test_it_comes_back_as_it_was(exported: Path, shelf: Shelf, elsewhere: Shelf) -> None:
    savepoint = import_file(elsewhere, exported)
    assert savepoint == shelf.read("first") == elsewhere.read("first")
    assert "fail" not in {f.verdict for f in verify(elsewhere.store, savepoint, None, None)}
    with pytest.raises(SavepointExists):
        import_file(elsewhere, exported)


def test_a_file_is_not_overwritten(exported: Path, shelf: Shelf) -> None:
    with pytest.raises(FileExists):
        export_file(shelf, "first", exported)
    assert [path.name for path in exported.parent.glob("*.tar*")] == ["first.tar"]


def test_a_damaged_savepoint_is_not_exported(made: Made, shelf: Shelf, tmp_path: Path) -> None:
    stored = create(made.source, shelf, "first").objects[0]
    shelf.store.put(f"first/{stored.key}", [b"x"])
    with pytest.raises(SavepointDamaged, match="cannot be read"):
        export_file(shelf, "first", tmp_path / "first.tar")
    assert not list(tmp_path.glob("*.tar*"))


def test_a_file_cut_off_anywhere_is_refused(exported: Path, elsewhere: Shelf) -> None:
    data = exported.read_bytes()
    short = exported.with_name("short.tar")
    for size in range(0, len(data) - 2 * tarfile.RECORDSIZE, 4096):
        short.write_bytes(data[:size])
        with pytest.raises(SavepointDamaged):
            import_file(elsewhere, short)
    assert elsewhere.names() == []


def test_members_that_are_not_named_or_climb_out_are_refused(
    exported: Path, elsewhere: Shelf
) -> None:
    with tarfile.open(exported) as tar:
        members = [(member, tar.extractfile(member)) for member in tar.getmembers()]
        crafted = exported.with_name("crafted.tar")
        for name, data in (("../../evil", b"x"), ("first/state/count/00000/x", b"x")):
            with tarfile.open(crafted, "w") as out:
                out.addfile(members[0][0], members[0][1])
                evil = tarfile.TarInfo(name)
                evil.size = len(data)
                out.addfile(evil, io.BytesIO(data))
            assert members[0][1] is not None
            members[0][1].seek(0)
            with pytest.raises(SavepointDamaged, match="is not what savepoint"):
                import_file(elsewhere, crafted)
    assert elsewhere.names() == []


def test_its_pin_is_that_of_the_log_it_came_to(exported: Path, elsewhere: Shelf) -> None:
    assert read_head(exported).name == "first"
    assert import_file(elsewhere, exported, pin="savepoint/cards/first@x").pin == (
        "savepoint/cards/first@x"
    )
    assert elsewhere.read("first").pin == "savepoint/cards/first@x"


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_a_first_member_that_is_no_file_is_refused(
    elsewhere: Shelf, tmp_path: Path, kind: bytes
) -> None:
    path = tmp_path / "odd.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("first/savepoint.json")
        member.type, member.linkname = kind, "elsewhere"
        tar.addfile(member)
    with pytest.raises(SavepointDamaged, match="does not come first"):
        import_file(elsewhere, path)
