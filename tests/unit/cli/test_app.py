"""The root command: quick, quiet, one line for an error."""

import errno
import os
import subprocess
import sys
from typing import Any

import pytest

from catchwater.cli import NOUNS, doctor
from catchwater.config import CatchwaterError


class Broken(CatchwaterError):
    exit_code = 5


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `catchwater doctor` raise an error."""

    def raising(error: Exception) -> None:
        def look() -> doctor.Finding:
            raise error

        monkeypatch.setattr(doctor, "CHECKS", {"broken": look})

    return raising


def test_help_names_every_noun(catchwater: Any) -> None:
    answer = catchwater("--help")
    assert answer.code == 0
    for noun in NOUNS:
        assert f"\n  {noun} " in answer.out


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_explains_itself(catchwater: Any, noun: str) -> None:
    answer = catchwater(noun, "--help")
    assert answer.code == 0
    assert "Usage: catchwater " + noun in answer.out
    assert "completion" not in answer.out  # only the whole command could be completed


def test_help_imports_nothing_heavy() -> None:
    look = (
        "import sys; sys.argv = ['catchwater', '--help']\n"
        "from catchwater.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'pyspark', 'pyarrow', 'numba', 'numpy', 'kio', 'rich', 'starlette', 'sqlite3',\n"
        "         'catchwater.pipeline'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", look], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("arguments", [["nonsense"], ["doctor", "--nonsense"], ["topic", "shout"]])
def test_a_mistyped_command_is_a_usage_error(catchwater: Any, arguments: list[str]) -> None:
    answer = catchwater(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "Usage:" in answer.err


def test_a_mistyped_noun_is_told_with_the_nearest_one(catchwater: Any) -> None:
    answer = catchwater("pipelin", "run")
    assert answer.code == 2
    assert "No such command 'pipelin'; the nearest is 'pipeline'." in answer.err


def test_what_the_operating_system_refuses_is_no_bug(catchwater: Any, broken: Any) -> None:
    broken(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"))
    told = "error: The operating system says: No space left on device (/data/x).\n"
    assert catchwater("doctor") == (
        1,
        "",
        f"{told}hint: Free some space there, and run the command again.\n",
    )
    broken(OSError(errno.EBADF, os.strerror(errno.EBADF)))
    assert "this is a bug" in catchwater("doctor").err


def test_an_operating_error_is_one_line_a_hint_and_its_exit_code(
    catchwater: Any, broken: Any
) -> None:
    broken(Broken("the log\nbegins at 7", hint="restore another"))
    answer = catchwater("doctor")
    assert answer == (5, "", "error: the log begins at 7\nhint: restore another\n")


def test_a_bug_is_one_line_too(catchwater: Any, broken: Any) -> None:
    broken(KeyError("x"))
    answer = catchwater("doctor")
    assert answer.code == 1
    assert answer.err.startswith("error: KeyError: 'x'\nhint: ")
    assert "Traceback" not in answer.err


def test_the_traceback_is_shown_on_request(
    catchwater: Any, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_DEBUG", "1")
    broken(KeyError("x"))
    assert "Traceback" in catchwater("doctor").err


def test_ctrl_c_ends_without_a_traceback(catchwater: Any, broken: Any) -> None:
    broken(KeyboardInterrupt())
    answer = catchwater("doctor")
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_ctrl_c_ends_without_a_traceback_while_the_command_is_still_being_imported() -> None:
    interrupted = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from catchwater.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_reader_that_went_away_is_no_error_to_talk_about() -> None:
    command = f"{sys.executable} -c 'from catchwater.cli import main; main()' --help | true"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr


def test_the_version_is_told(catchwater: Any) -> None:
    assert catchwater("--version").out.startswith("catchwater ")


def test_a_package_that_is_missing_is_told_with_the_extra_that_brings_it(
    catchwater: Any, broken: Any
) -> None:
    broken(ModuleNotFoundError("No module named 'numba.core'", name="numba.core"))
    answer = catchwater("doctor")
    assert answer.code == 1
    assert "error: This command needs numba, which is not installed." in answer.err
    assert "pip install 'catchwater[spark]'" in answer.err
    broken(ModuleNotFoundError("No module named 'catchwater.nonsense'", name="catchwater.nonsense"))
    assert "this is a bug" in catchwater("doctor").err


def test_a_broker_and_the_test_of_a_function_need_no_extra() -> None:
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('numba', 'pandas', 'pyarrow', 'pyspark')))\n"
        "import catchwater.broker.main, catchwater.cli.broker, catchwater.cli.topic\n"
        "import catchwater.cli.log, catchwater.cli.check\n"
        "from catchwater.demo.card_risk import CardRisk, Txn\n"
        "from catchwater.testing import Harness\n"
        "Harness(CardRisk)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
