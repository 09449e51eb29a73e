"""Where an export goes: all of it or nothing, on a disk and in a bucket."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from catchwater.clock import SYSTEM
from catchwater.objects.open import open_store
from catchwater.replay.export.place import (
    SUCCESS,
    ExportGone,
    ExportRefused,
    ExportUnwritable,
    Place,
    open_place,
)

TOKEN = "abc123"
PART = f"part-00000-{TOKEN}.parquet"


@pytest.fixture(params=["folder", "bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "a" / "out")
    return str(request.getfixturevalue("s3_url"))


@pytest.fixture
def place(target: str) -> Place:
    return open_place(target, TOKEN)


@pytest.fixture
def content(target: str, tmp_path: Path) -> Callable[[], dict[str, bytes]]:
    """All that a reader of the target sees, hidden files too."""

    def found() -> dict[str, bytes]:
        if target.startswith("s3:"):
            store = open_store(target, SYSTEM)
            return {each.key: store.get(each.key) for each in store.list("")}
        folder = Path(target)
        return (
            {each.name: each.read_bytes() for each in folder.iterdir()} if folder.exists() else {}
        )

    return found


def put(place: Place, name: str, data: bytes) -> None:
    with place.file(name) as path:
        path.write_bytes(data)


def test_what_is_published_is_there_and_nothing_else(
    place: Place, content: Callable[[], dict[str, bytes]], tmp_path: Path
) -> None:
    place.begin()
    put(place, PART, b"first attempt")
    put(place, PART, b"rows")
    with pytest.raises(ZeroDivisionError), place.file(PART) as path:
        path.write_bytes(b"half of the")
        raise ZeroDivisionError
    assert SUCCESS not in content()
    place.publish(b"{}")
    assert content() == {PART: b"rows", SUCCESS: b"{}"}
    assert not [each for each in tmp_path.rglob(".*") if TOKEN in each.name]
    with pytest.raises(ExportRefused, match="holds something"):
        place.begin()


def test_what_is_abandoned_was_never_there(
    place: Place, content: Callable[[], dict[str, bytes]], tmp_path: Path
) -> None:
    place.begin()
    put(place, PART, b"rows")
    place.abandon()
    assert content() == {}
    assert not [each for each in tmp_path.rglob("*") if TOKEN in each.name]
    place.begin()


def test_a_folder_shows_nothing_before_and_takes_an_empty_one_s_place(tmp_path: Path) -> None:
    place = open_place((tmp_path / "out").as_uri(), TOKEN)
    (tmp_path / "out").mkdir()
    place.begin()
    put(place, PART, b"rows")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "out" / "other").touch()
    with pytest.raises(ExportRefused, match="holds something"):
        place.publish(b"{}")
    (tmp_path / "out" / "other").unlink()
    place.publish(b"{}")
    assert {each.name for each in (tmp_path / "out").iterdir()} == {PART, SUCCESS}


def test_an_attempt_that_is_late_leaves_nothing_in_a_published_folder(tmp_path: Path) -> None:
    place = open_place(str(tmp_path / "out"), TOKEN)
    place.begin()
    put(place, PART, b"rows")
    writing, published = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def late() -> None:
        try:
            with place.file(PART) as path:
                path.write_bytes(b"late")
                writing.set()
                assert published.wait(30)
        except ExportGone as error:
            failures.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    assert writing.wait(30)
    place.publish(b"{}")
    published.set()
    thread.join(30)
    assert {each.name for each in tmp_path.rglob("*")} == {"out", PART, SUCCESS}
    assert (tmp_path / "out" / PART).read_bytes() == b"rows"
    assert "has ended meanwhile" in str(failures[0].hint)
    with pytest.raises(ExportGone):
        put(place, PART, b"later still")


def test_what_no_file_can_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportRefused, match="holds something"):
        open_place(str(tmp_path / "file"), TOKEN).begin()
    with pytest.raises(ExportUnwritable, match=r"file/\.out\.abc123 could not be written"):
        open_place(str(tmp_path / "file" / "out"), TOKEN).begin()
    with pytest.raises(ExportRefused, match="gs://bucket"):
        open_place("gs://bucket", TOKEN)
