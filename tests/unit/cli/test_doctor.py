"""The doctor names what is missing and the command that mends it."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.cli import doctor
from catchwater.cli.doctor import Finding


def report(monkeypatch: pytest.MonkeyPatch, *verdicts: str) -> None:
    checks = {
        f"check{n}": lambda v=v: Finding(v, "seen", "mend it" if v != "ok" else "")
        for n, v in enumerate(verdicts)
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)


@pytest.mark.parametrize(
    ("verdicts", "code"), [(["ok"], 0), (["ok", "warn"], 3), (["warn", "fail"], 4)]
)
def test_the_worst_finding_is_the_exit_code(
    catchwater: Any, monkeypatch: pytest.MonkeyPatch, verdicts: list[str], code: int
) -> None:
    report(monkeypatch, *verdicts)
    answer = catchwater("doctor")
    assert answer.code == code
    assert answer.out.count("\n") == len(verdicts)
    assert answer.out.count("mend it") == len(verdicts) - verdicts.count("ok")


def test_json_holds_the_same(catchwater: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch, "ok", "fail")
    assert json.loads(catchwater("doctor", "--json").out) == [
        {"check": "check0", "verdict": "ok", "found": "seen", "mend": ""},
        {"check": "check1", "verdict": "fail", "found": "seen", "mend": "mend it"},
    ]


def test_one_check_can_be_asked_for(catchwater: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch, "ok", "fail")
    assert catchwater("doctor", "--check", "check0").code == 0


def test_a_check_that_does_not_exist_is_a_usage_error(catchwater: Any) -> None:
    answer = catchwater("doctor", "--check", "weather")
    assert answer.code == 2
    assert "'weather'" in answer.err


def test_a_machine_without_java_is_told_how_to_get_it(
    catchwater: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = catchwater("doctor", "--check", "java")
    assert answer.code == 4
    assert answer.out.startswith("✘ java")
    assert "Install Java 17" in answer.out


def test_an_absent_or_unfit_package_fails() -> None:
    assert doctor._package("no-such-distribution", ">=1").verdict == "fail"
    assert doctor._package("pytest", ">=1000").verdict == "fail"
    assert doctor._package("pytest", ">=1").verdict == "ok"


def test_modules_that_every_start_would_compile_again_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    assert doctor._bytecode() == Finding("ok", "compiled modules are kept")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    found = doctor._bytecode()
    assert found.verdict == "warn" and "catchwater" in found.found
    assert "PYTHONDONTWRITEBYTECODE" in found.found
    assert f" {Path(doctor.__file__).parents[1]}" in found.mend and "compileall" in found.mend


def test_another_python_for_the_workers_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/sh")
    assert doctor._pyspark_python().verdict == "warn"
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    assert doctor._pyspark_python().verdict == "fail"
