"""Workers run the code that was published, and no other."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from catchwater.config import ConfigError
from catchwater.pipeline.functions.declare import DeclarationError, spec_of
from catchwater.pipeline.run.versions import (
    CodeChanged,
    FunctionCode,
    find_function,
    part_sha256,
    publish,
)

SOURCE = """\
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

LIMIT = {limit}

@dataclass
class Event:
    key: str
    at: int

@dataclass
class State:
    seen: int = 0

@function(name="counter", key="key", event_time="at")
class Counter(Keyed[Event, State, Event]):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[Event]:
        return [e] * LIMIT

not_a_function = 7

def plain() -> None: ...
"""


@pytest.fixture(autouse=True)
def leave_the_interpreter_as_it_was() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("counter_module", None)


def write(folder: Path, limit: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "counter_module.py").write_text(SOURCE.format(limit=limit))


def test_a_worker_runs_the_published_code_though_the_file_has_changed(tmp_path: Path) -> None:
    write(tmp_path)
    code = publish(find_function("counter_module:Counter", tmp_path), tmp_path / "checkpoint")
    write(tmp_path, limit=2)
    sys.modules.pop("counter_module")
    spec = code.load()
    assert sys.modules["counter_module"].LIMIT == 1
    assert spec.name == "counter"
    assert code.load() is spec


def test_a_worker_that_imported_another_version_before_runs_the_published_one(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    find_function("counter_module:Counter", tmp_path)
    write(tmp_path, limit=2)
    spec = find_function("counter_module:Counter", tmp_path)
    code = publish(spec, tmp_path / "checkpoint")
    code.load()
    assert sys.modules["counter_module"].LIMIT == 2


def test_a_machine_without_the_file_runs_the_copy_that_travels_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "travelling_counter.py"
    module.write_text(SOURCE.format(limit=3))
    code = publish(find_function("travelling_counter:Counter", tmp_path), tmp_path / "checkpoint")
    sent = pickle.dumps(code.travelling())
    there = tmp_path / "there"
    monkeypatch.setenv("CATCHWATER_CACHE", str(there))
    Path(code.path).unlink()
    for _ in range(2):  # by the second task it is there
        sys.modules.pop("travelling_counter")
        found = pickle.loads(sent).load()
        assert sys.modules["travelling_counter"].LIMIT == 3 and found.name == "counter"
    (kept,) = (there / "code").glob("*.py")
    kept.write_text("LIMIT = 4")
    sys.modules.pop("travelling_counter")
    with pytest.raises(CodeChanged):
        pickle.loads(sent).load()


def test_code_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    code = publish(find_function("counter_module:Counter", tmp_path), tmp_path / "checkpoint")
    Path(code.path).write_text("raise SystemExit")
    with pytest.raises(CodeChanged, match="is not what was published"):
        code.load()


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("counter_module", "not of the form module:Class"),
        ("absent_module:Counter", "cannot be imported"),
        ("counter_module:Absent", "has no 'Absent'"),
        ("counter_module:Countr", "has no 'Countr'"),
    ],
)
def test_a_function_that_cannot_be_found_is_told(tmp_path: Path, named: str, told: str) -> None:
    write(tmp_path)
    with pytest.raises(ConfigError, match=told):
        find_function(named, tmp_path)


@pytest.mark.parametrize(
    ("written", "mistaken", "told"),
    [
        ('key="key", ', "", r"TypeError: .*'key', at .*counter_module.py line 15: @function"),
        ("Keyed[Event, State, Event]", "Keyed[Event, State]", r"TypeError: .* line 16: class"),
        ("seen: int = 0", "seen: list = []", r"ValueError: mutable default .* line 11: @dataclass"),
        ("class State:", "class State", r"SyntaxError: .*counter_module.py, line 12"),
        ("LIMIT = 1", "LIMIT = 1 / 0", r"ZeroDivisionError: .* line 4: LIMIT = 1 / 0"),
        ("LIMIT = 1", "import absent_module", r"'absent_module', at .* line 4: import absent"),
    ],
)
def test_a_module_that_fails_is_told_with_its_own_line(
    tmp_path: Path, written: str, mistaken: str, told: str
) -> None:
    write(tmp_path)
    file = tmp_path / "counter_module.py"
    assert written in file.read_text()
    file.write_text(file.read_text().replace(written, mistaken))
    with pytest.raises(ConfigError, match=told):
        find_function("counter_module:Counter", tmp_path)


def test_what_was_not_declared_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DeclarationError):
        find_function("counter_module:plain", tmp_path)


def test_a_function_that_another_one_made_is_known_by_the_name_it_was_given(tmp_path: Path) -> None:
    body, _, rest = SOURCE.partition("@function")
    lines = ["def make():", *("    " + line for line in ("@function" + rest).splitlines()[:4])]
    made = "\n".join([body.format(limit=1), *lines, "    return Counter", "Made = make()", ""])
    (tmp_path / "counter_module.py").write_text(made)
    code = publish(find_function("counter_module:Made", tmp_path), tmp_path / "checkpoint")
    sys.modules.pop("counter_module")
    assert (code.name, code.load().name) == ("Made", "counter")
    del sys.modules["counter_module"].Made
    nameless = spec_of(sys.modules["counter_module"].make())
    with pytest.raises(ConfigError, match="Counter has no name in the module that makes it"):
        publish(nameless, tmp_path / "checkpoint")


TWO = """\
\"\"\"Two functions; First is the older.\"\"\"
from dataclasses import dataclass, field
import math
from catchwater import Context, Keyed, Out, function

LIMIT = 5
FACTOR = math.floor(2.5)
NAMES: dict[str, int] = {"a": 1}

@dataclass
class Event:
    card: str
    at: int

@dataclass
class State:
    seen: list[int] = field(default_factory=list)

@dataclass
class Other:
    n: int = 0

def deepest(n: int) -> int:
    return n + LIMIT

def deeper(n: int) -> int:
    return deepest(n)

def beside(n: int) -> int:
    return n * FACTOR

class Base(Keyed[Event, State, Event]):
    def helped(self, n: int) -> int:
        return deeper(n)

@function(name="first", key="card", event_time="at")
class First(Base):
    def on_event(self, e: Event, s: State, ctx: Context) -> Out[Event]:
        \"\"\"Says what Other says.\"\"\"
        return []

@function(name="second", key="card", event_time="at")
class Second(Keyed[Event, Other, Event]):
    def on_event(self, e: Event, s: Other, ctx: Context) -> Out[Event]:
        return [beside(s.n), NAMES]
"""


@pytest.mark.parametrize(
    ("old", "new", "first", "second"),
    [
        ("n + LIMIT", "n - LIMIT", True, False),
        ("LIMIT = 5", "LIMIT = 6", True, False),
        ("return deeper(n)", "return -deeper(n)", True, False),
        ("FACTOR = math.floor(2.5)", "FACTOR = math.ceil(2.5)", False, True),
        ('{"a": 1}', '{"a": 2}', False, True),
        ("n: int = 0", "n: int = 1", False, True),
        ("at: int", "at: int  # ms", False, False),
        ("    card: str", "    card: str\n    shop: str = ''", True, True),
        ('name="second"', 'name="second", version=2', False, True),
        ('"""Two functions', '"""More functions', False, False),
        ("def beside", "\n# what follows helps\n\ndef beside", False, False),
        ("LIMIT = 5", "LIMIT = 5\nUNUSED = 7", False, False),
        ("class First", "class Third:\n    pass\n\nclass First", True, False),
        # What may do more than bind a name is everybody's.
        ("LIMIT = 5", "LIMIT = 5\nNAMES = {}\nNAMES['b'] = 2", True, True),
        ("LIMIT = 5", "LIMIT = 5\nif LIMIT:\n    pass", True, True),
        ("LIMIT = 5", "from helpers import *\nLIMIT = 5", True, True),
        ("@dataclass\nclass Other", "@beside\n@dataclass\nclass Other", True, True),
        ("def beside", "@registered\ndef beside", True, True),
        ("def deeper", "X = beside(3)\ndef deeper", True, True),
        ("class Other:", "class Other(metaclass=Base):", True, True),
        ("class Other:", "class Other:\n    First.x = 5", True, True),
    ],
)
def test_a_change_is_of_the_functions_that_use_what_was_changed(
    old: str, new: str, first: bool, second: bool
) -> None:
    changed = TWO.replace(old, new, 1)
    assert changed != TWO
    for name, expected in (("First", first), ("Second", second)):
        before, after = (part_sha256(text.encode(), name) for text in (TWO, changed))
        assert (before != after) is expected, name


@pytest.mark.parametrize(
    "use", ["deeper", "'deeper'", "globals()['dee' + 'per']", "eval('dee' + 'per')"]
)
def test_a_helper_is_found_however_it_is_named(use: str) -> None:
    """By its name, in a text that something looks up, or by who may see all that there is."""
    text = TWO.replace("return [beside(s.n), NAMES]", f"return [{use}]")
    changed = text.replace("n + LIMIT", "n - LIMIT")
    assert part_sha256(text.encode(), "Second") != part_sha256(changed.encode(), "Second")


def test_a_function_that_another_made_and_one_that_is_not_found_count_what_they_may_use() -> None:
    made = "def made(n):\n    return n\nF = made(1)\nG = made(2)\n"
    changed = made.replace("return n", "return -n")
    for name in ("F", "G", "Nowhere"):
        assert part_sha256(made.encode(), name) != part_sha256(changed.encode(), name)


def test_a_worker_imports_a_script_with_the_arguments_that_the_driver_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    script = tmp_path / "counter_module.py"
    script.write_text(f"import sys\nLEAST = int(sys.argv[1])\n{script.read_text()}")
    monkeypatch.setattr(sys, "argv", ["counter_module.py", "7"])
    made = publish(find_function("counter_module:Counter", tmp_path), tmp_path / "checkpoint")
    sent = msgspec.json.encode(made), pickle.dumps(made)

    monkeypatch.setattr(sys, "argv", ["pyspark.daemon"])
    for code in (msgspec.json.decode(sent[0], type=FunctionCode), pickle.loads(sent[1])):
        sys.modules.pop("counter_module")
        assert code.load().name == "counter"
        assert sys.modules["counter_module"].LEAST == 7
    assert sys.argv == ["pyspark.daemon"]


def test_a_module_that_takes_the_commands_arguments_for_its_own_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "counter_module.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args()\n"
    )
    monkeypatch.setattr(sys, "argv", ["catchwater", "pipeline", "run", "pipeline.toml"])
    with pytest.raises(ConfigError, match="'counter_module' ends its process while it is") as found:
        find_function("counter_module:Counter", tmp_path)
    assert 'if __name__ == "__main__"' in (found.value.hint or "")
