"""What `catchwater dev` makes of a saved file, without Spark and without a broker."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchwater.cli.init import FILES
from catchwater.config import CatchwaterError, ConfigError
from catchwater.pipeline import develop
from catchwater.pipeline.develop import Prints, Snapshot, Tell, look, of_module
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.config import PipelineConfig, read
from catchwater.recovery.ledger import FOLDER
from catchwater.sinks.base import RETRACTS_ID_HEADER, OutputRecord

RATES = "RATE = 1\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What `catchwater init` writes, and a module that the function imports."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "rates.py").write_text(RATES)
    function = tmp_path / "card_risk.py"
    function.write_text(function.read_text().replace("@dataclass", "import rates\n\n@dataclass", 1))
    yield tmp_path
    develop.forget(tmp_path)


def load(project: Path) -> PipelineConfig:
    return read(project / "pipeline.toml", {})


def seen(project: Path) -> Snapshot:
    """As a process of its own sees it: nothing was imported before."""
    develop.forget(project)
    return look(lambda: load(project))


def edit(project: Path, old: str, new: str, name: str = "card_risk.py") -> None:
    file = project / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_a_project_is_seen_with_all_that_a_start_needs(project: Path) -> None:
    found = seen(project)
    assert (found.pipeline, found.input, found.key) == ("card-risk", "payments", ["card"])
    assert [(each.name, each.version) for each in found.functions] == [("card-risk", 1)]
    assert {Path(path).name for path in found.files} == {"card_risk.py", "rates.py"}
    assert found.sinks == {"alerts": "log alerts"}
    assert found.changed(found) == []


def test_what_was_saved_is_named_and_a_comment_changes_nothing(project: Path) -> None:
    first = seen(project)
    edit(project, "s.small_at = e.at", "s.small_at = e.at  # of this card")
    comment = seen(project)
    assert comment.changed(first) == [] and comment.files != first.files
    edit(project, "> 500", "> 600")
    function = seen(project)
    assert function.changed(first) == ["card-risk"]
    assert not function.needs_fresh_workers(first), "workers load the artefact by its digest"
    edit(project, "1", "2", "rates.py")
    helper = seen(project)
    assert helper.changed(function) == ["rates.py"]
    assert helper.needs_fresh_workers(function), "they import it once"
    assert helper.settings == first.settings
    edit(project, "100000", "200000", "pipeline.toml")
    assert seen(project).settings != first.settings


def test_a_file_that_cannot_be_imported_is_named_with_its_line(project: Path) -> None:
    edit(project, "if e.amount < 1:", "if e.amount < 1")
    with pytest.raises(ConfigError, match=r"expected ':' \(card_risk.py, line \d+\)"):
        seen(project)
    edit(project, "if e.amount < 1", "if e.amount < 1:")
    edit(project, "import rates", "import rates, nowhere")
    with pytest.raises(ConfigError, match=r"nowhere.*card_risk\.py line \d+"):
        seen(project)


def test_code_that_cannot_read_its_state_is_refused_before_anything_stops(project: Path) -> None:
    develop.forget(project)
    config = load(project)
    spec = versions.find_function("card_risk:CardRisk", project)
    code = versions.publish(spec, config.checkpoint)
    versions.admit(config.checkpoint, [(spec, code)], 0, 0)
    edit(project, "small_at: int = 0", "small_at: int = 0\n    seen: int = 0")
    seen(project)  # a field more is no harm
    edit(project, "small_at: int = 0", 'small_at: str = ""')
    with pytest.raises(CatchwaterError, match="small_at: it was int and is str"):
        seen(project)
    edit(project, 'small_at: str = ""', "small_at: int = 0")
    edit(project, "version=1", "version=2")
    with pytest.raises(CatchwaterError, match="version was 1 and is now 2"):
        seen(project)
    assert (config.checkpoint / FOLDER / "code" / f"{code.sha256}.py").exists()


def test_a_module_is_a_pipeline_between_topics_of_its_functions_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    for named in ("card_risk", "card_risk.py", "card_risk.py:CardRisk", f"{project}/card_risk.py"):
        config = of_module(named, "127.0.0.1:1")
        assert config.functions == ("card_risk:CardRisk",)
        assert config.source["subscribe"] == "card-risk-in"
        assert config.checkpoint == project / ".catchwater" / "card-risk"
        assert [sink.place for sink in config.sinks.values()] == ["card-risk-out"]
    with pytest.raises(ConfigError, match="one function to run; it has none"):
        of_module("rates.py", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="named 'Txn'; it has none"):
        of_module("card_risk.py:Txn", "127.0.0.1:1")


def test_the_users_modules_are_forgotten_and_nobody_elses(project: Path) -> None:
    seen(project)
    assert {"card_risk", "rates"} <= sys.modules.keys()
    develop.forget(project)
    assert not {"card_risk", "rates"} & sys.modules.keys()
    assert "catchwater.pipeline.develop" in sys.modules and "pytest" in sys.modules
    folder = project
    assert not develop.is_the_users(folder / ".venv/lib/site-packages/x.py", folder)
    assert not develop.is_the_users(folder / "lib/site-packages/x.py", folder)
    assert not develop.is_the_users(folder.parent / "x.py", folder)
    assert develop.is_the_users(folder / "package/x.py", folder)


def test_an_event_is_sent_under_the_functions_key() -> None:
    assert develop.key_of(b'{"card":"c1","n":1}', ["card"]) == b"c1"
    assert develop.key_of(b'{"card":"c1","n":1}', ["card", "n"]) == b"c1,1"
    for wrong in (b"", b"nonsense", b"[]", b"3", b'{"n":1}'):
        with pytest.raises(ConfigError, match=r'such as \{"card":"…"\}'):
            develop.key_of(wrong, ["card"])


def test_prints_come_in_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = Prints(tmp_path / "prints")
    assert prints.take() == []
    with (tmp_path / "prints").open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert prints.take() == ["one"]
        file.write(b"o\n\xff\n")
        assert prints.take() == ["two", "\ufffd"]
        monkeypatch.setattr(develop, "_MOST_PRINTED", 3)
        file.write(b"three\n")
        assert prints.take() == ["three"]
        assert os.path.getsize(tmp_path / "prints") == 0
        file.write(b"four\n")
        assert prints.take() == ["four"]


def test_outputs_are_for_programs_and_the_rest_is_for_people() -> None:
    out, err = io.StringIO(), io.StringIO()
    tell = Tell(out, err)
    tell.output("alerts", develop.shown(OutputRecord(b"k", b'{"a":1}', 0)))
    tell.output("alerts", develop.shown(OutputRecord(b"k", b"\x00\x01", 0)))
    retracted = OutputRecord(b"k", b"x", 0, ((RETRACTS_ID_HEADER, b"id"),))
    tell.output("alerts", develop.shown(retracted))
    copy = f"ZeroDivisionError, in on_event, module cards (/c/code/{'0' * 64}.py) line 3: 1/0"
    tell.error(CatchwaterError(copy, hint="Mend it."))
    assert out.getvalue().splitlines() == [
        'alerts    {"a":1}', "alerts    2 bytes, 0001…", "alerts    retracted: x"
    ]  # fmt: skip
    assert err.getvalue().splitlines() == [
        "error     ZeroDivisionError, in on_event, module cards line 3: 1/0", "hint      Mend it."
    ]  # fmt: skip
