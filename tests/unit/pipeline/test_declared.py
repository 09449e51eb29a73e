"""A pipeline that Python declares is what a file that says the same declares."""

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from examples import fraud_routing
from examples.fraud_routing import CardScore, ReviewDesk

import catchwater
from catchwater import Files, Http, Iceberg, Kafka, Pipeline, RunningPipeline, Table, Topic
from catchwater.cli.console import load_here
from catchwater.config import CatchwaterError, ConfigError
from catchwater.demo.card_risk import CardRisk
from catchwater.pipeline import pipeline as public
from catchwater.pipeline.functions.declare import DeclarationError
from catchwater.pipeline.run import config as files
from catchwater.pipeline.run import driver
from catchwater.pipeline.run.driver import Stop, take_report
from catchwater.pipeline.run.versions import _importing
from catchwater.pipeline.spark import session
from catchwater.recovery.ledger import LedgerDamaged

KAFKA = Kafka("localhost:9092", "payments")


def of_file(tmp_path: Path, text: str) -> Pipeline:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return Pipeline.from_file(file, {})


def test_a_file_that_says_the_same_makes_the_same_pipeline(tmp_path: Path) -> None:
    declared = Pipeline(
        "cards",
        CardScore,
        ReviewDesk,
        source=Kafka(
            "localhost:9092", "payments", starting_offsets="earliest", max_offsets_per_trigger=500,
            fail_on_data_loss=False, record_key_is_function_key=True,
            options={"kafka.security.protocol": "PLAINTEXT"},
        ),
        sinks=[
            Topic("scores", 4, outputs_of=CardScore),
            Topic("copies", kafka="other:9092", retry="5s", options={"kafka.linger.ms": "5"}),
            Table("postgresql://db/cards", "public.cases", name="desk", mode="upsert"),
            Table("sqlite:///cases.db", "cases", keep="7d"),
            Files("s3://bucket/cases"),
            Iceberg("lake.cases2", "warehouse", snapshots=3),
            Http("http://h/{key}", "PUT", deduplicates=True, delivery="at-least-once"),
        ],
        dead_letter=Topic("not-payments"),
        folder=tmp_path,
        tasks=4, idle_timeout="30s", spare=True, retain=9, savepoints="s3://b/s", local=Path("l"),
    )  # fmt: skip
    written = of_file(
        tmp_path,
        """
        [pipeline]
        name = "cards"
        functions = ["examples.fraud_routing:CardScore", "examples.fraud_routing:ReviewDesk"]
        checkpoint = "checkpoint/cards"
        tasks = 4
        idle_timeout = "30s"
        spare = true
        local = "l"
        [source]
        kafka.bootstrap.servers = "localhost:9092"
        kafka.security.protocol = "PLAINTEXT"
        subscribe = "payments"
        startingOffsets = "earliest"
        maxOffsetsPerTrigger = 500
        failOnDataLoss = false
        recordKeyIsFunctionKey = true
        [sink.scores]
        topic = "scores"
        partitions = 4
        from = "card-score"
        [sink.copies]
        kind = "kafka"
        topic = "copies"
        retry = "5s"
        kafka.bootstrap.servers = "other:9092"
        kafka.linger.ms = "5"
        [sink.desk]
        kind = "postgres"
        url = "postgresql://db/cards"
        table = "public.cases"
        mode = "upsert"
        [sink.cases]
        kind = "sqlite"
        path = "cases.db"
        table = "cases"
        keep = "7d"
        [sink.parquet]
        kind = "parquet"
        url = "s3://bucket/cases"
        [sink.cases2]
        kind = "iceberg"
        table = "lake.cases2"
        warehouse = "warehouse"
        snapshots = 3
        [sink.http]
        kind = "http"
        url = "http://h/{key}"
        method = "PUT"
        deduplicates = true
        delivery = "at-least-once"
        [dead_letter]
        topic = "not-payments"
        [recovery]
        retain = 9
        savepoints = "s3://b/s"
        """,
    )
    assert declared.config == written.config
    assert declared.config.specs is not None


def test_inputs_tables_calls_and_spark_are_sections_of_the_file(tmp_path: Path) -> None:
    declared = Pipeline(
        "shop", CardRisk, source=Kafka("h:1", inputs={"orders": "shop-orders"}),
        sinks=[Topic("out")], tables={"items": "shop-items"}, calls={"score": {"timeout": "2s"}},
        spark={"master": "local[3]", "spark.executor.memory": "1g"}, folder=tmp_path,
    )  # fmt: skip
    written = of_file(
        tmp_path,
        """
        [pipeline]
        name = "shop"
        function = "catchwater.demo.card_risk:CardRisk"
        checkpoint = "checkpoint/shop"
        [source]
        kafka.bootstrap.servers = "h:1"
        [inputs]
        orders = "shop-orders"
        [table.items]
        topic = "shop-items"
        [call.score]
        timeout = "2s"
        [sink.out]
        topic = "out"
        [spark]
        master = "local[3]"
        spark.executor.memory = "1g"
        """,
    )
    assert declared.config == written.config


def test_every_key_of_the_file_has_its_argument() -> None:
    keys = {key.name for key in files._DECLARED.values() if key.section != "source"}
    arguments = {"functions", "name", "checkpoint"}
    assert {*get_type_hints(public.Settings)} == keys - arguments


def test_sinks_with_one_name_for_their_targets_are_told_apart_by_their_kinds() -> None:
    sinks = [Topic("alerts"), Table("postgresql://db/cards", "alerts"), Topic("other")]
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=sinks)
    assert {*made.config.sinks} == {"alerts-log", "alerts-postgres", "other"}
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=[*sinks[1:], Topic("x", name="y")])
    assert {*made.config.sinks} == {"alerts", "other", "y"}


def test_the_notebook_declares_what_the_file_does() -> None:
    path = Path(fraud_routing.__file__).with_name("notebook.py")
    cell = path.read_text().partition("# %% What would")[0]
    names: dict[str, Any] = {"__file__": str(path)}
    exec(cell.replace("from fraud_routing", "from examples.fraud_routing"), names)
    written = Pipeline.from_file(path.with_name("fraud_routing.toml"), {}).config
    made = replace(names["pipeline"].config, functions=written.functions)
    assert made == replace(written, name="card-score")
    assert written.name is None and CardScore.__catchwater__.name == "card-score"


def test_paths_are_meant_from_the_file_that_makes_the_pipeline() -> None:
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("alerts")])
    assert made.config.checkpoint == Path(__file__).parent / "checkpoint" / "cards"


Make = Callable[[], Any]
WRONG: dict[str, tuple[Make, str]] = {
    "no function": (
        lambda: Pipeline("cards", source=KAFKA, sinks=[Topic("a")]),
        "after the name come the functions",
    ),
    "no name": (
        lambda: Pipeline(CardRisk, source=KAFKA, sinks=[Topic("a")]),  # type: ignore[arg-type]
        "the name, which comes first, is a text",
    ),
    "a source that is a text": (
        lambda: Pipeline("cards", CardRisk, source="h:1", sinks=[Topic("a")]),  # type: ignore[arg-type]
        r"source is a Kafka\(…\), not str",
    ),
    "one sink, not in a list": (
        lambda: Pipeline("cards", CardRisk, source=KAFKA, sinks=Topic("a")),  # type: ignore[arg-type]
        "sinks is a list of",
    ),
    "a dead letter that is a text": (
        lambda: Pipeline(
            "cards",
            CardRisk,
            source=KAFKA,
            sinks=[Topic("a")],
            dead_letter="a",  # type: ignore[arg-type]
        ),
        "dead_letter is a sink, not str",
    ),
    "no sink": (
        lambda: Pipeline("cards", CardRisk, source=KAFKA, sinks=[]),
        r"^Pipeline\('cards'\): no sink: the outputs would go nowhere",
    ),
    "two sinks of one name": (
        lambda: Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("a"), Topic("a")]),
        "two sinks are named 'a-log'",
    ),
    "no topic": (
        lambda: Pipeline("cards", CardRisk, source=Kafka("h:1"), sinks=[Topic("a")]),
        r"subscribe in \[source\] is missing",
    ),
    "a port that cannot be": (
        lambda: Pipeline("cards", CardRisk, source=Kafka("h:99999", "t"), sinks=[Topic("a")]),
        r"^Pipeline\('cards'\): ",
    ),
    "a number out of range": (
        lambda: Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("a")], tasks=0),
        r"^Pipeline\('cards'\): tasks must be a whole number from 1 on, not '0'",
    ),
    "an argument that does not exist": (
        lambda: Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("a")], taks=1),  # type: ignore[call-arg]
        "there is no taks in .pipeline.",
    ),
    "an option that does not exist": (
        lambda: Pipeline(
            "cards",
            CardRisk,
            source=Kafka("h:1", "t", options={"kafka.acks": "1"}),
            sinks=[Topic("a")],
        ),
        r"there is no kafka.acks in \[source\]",
    ),
    "a table elsewhere": (
        lambda: Pipeline("cards", CardRisk, source=KAFKA, sinks=[Table("mysql://h/d", "a")]),
        "in a database that no sink writes to",
    ),
    "a table's name": (
        lambda: Pipeline("c", CardRisk, source=KAFKA, sinks=[Table("sqlite:///a.db", "a b")]),
        "table in .sink.a b. must be a table's name",
    ),
    "a setting of Spark's that is ours": (
        lambda: Pipeline(
            "cards",
            CardRisk,
            source=KAFKA,
            sinks=[Topic("a")],
            spark={"spark.sql.shuffle.partitions": 7},
        ),
        "spark.sql.shuffle.partitions is not for a pipeline's file to set",
    ),
    "a master that Spark does not have": (
        lambda: Pipeline(
            "c", CardRisk, source=KAFKA, sinks=[Topic("a")], spark={"master": "mesos"}
        ),
        "master = 'mesos' is none that Spark has",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_bad_argument_gets_one_clear_line(wrong: str) -> None:
    make, said = WRONG[wrong]
    with pytest.raises(ConfigError, match=said) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_what_is_no_function_of_ours_is_refused() -> None:
    with pytest.raises(DeclarationError, match="decorate it with @function"):
        Pipeline("cards", dict, source=KAFKA, sinks=[Topic("a")])


def test_a_function_that_no_file_declares_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fraud_routing, "__file__")
    with pytest.raises(ConfigError, match="is declared in no file"):
        Pipeline("cards", CardScore, source=KAFKA, sinks=[Topic("a")])


def test_a_script_names_its_functions_as_its_module_does(tmp_path: Path) -> None:
    script = tmp_path / "cards.py"
    script.write_text(
        "from catchwater import Kafka, Pipeline, Topic, keyed, function\n"
        "import msgspec\n"
        "class E(msgspec.Struct):\n    k: str\n    at: int\n"
        "class S(msgspec.Struct):\n    n: int = 0\n"
        "@function(name='n', key='k', event_time='at')\n"
        "def n(e: E, s: S, ctx: object) -> list[E]:\n    return []\n"
        "p = Pipeline('n', n, source=Kafka('h:1', 't'), sinks=[Topic('a')])\n"
        "print(p.config.functions[0], p.config.checkpoint)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.stdout.split() == ["cards:n", f"{tmp_path}/checkpoint/n"], done.stderr


def test_a_command_finds_the_pipeline_that_a_script_makes(tmp_path: Path) -> None:
    script = tmp_path / "found_by_name.py"
    script.write_text(
        "from catchwater import Kafka, Pipeline, Topic\n"
        "from catchwater.demo.card_risk import CardRisk\n"
        "cards = Pipeline('n', CardRisk, source=Kafka('h:1', 't'), sinks=[Topic('a')])\n"
    )
    config = load_here(Path(f"{script}:cards"))
    assert (config.name, config.checkpoint) == ("n", tmp_path / "checkpoint" / "n")
    with pytest.raises(ConfigError, match="makes no Pipeline named 'dogs'"):
        load_here(Path(f"{script}:dogs"))


def test_no_pipeline_runs_while_its_module_is_imported() -> None:
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("a")])
    with _importing(), pytest.raises(ConfigError, match="is run by a module that is only imported"):
        made.run()


def test_a_plan_is_for_reading() -> None:
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("alerts")])
    plan = made.plan(offline=True)
    assert plan.ok
    assert "source: payments at localhost:9092" in str(plan)
    assert "sink: alerts, kind log" in str(plan)


def test_passwords_are_not_shown() -> None:
    source = Kafka("h:1", "t", options={"kafka.sasl.jaas.config": "secret"})
    sinks = [Table("postgresql://u:secret@h/d", "t"), Http("http://h", authorization="secret")]
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=[*sinks, Topic("x")])
    assert "secret" not in repr([source, sinks, made, made.config])


def running(tmp_path: Path, work: Callable[[Stop, Callable[[], None]], None]) -> RunningPipeline:
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("alerts")], folder=tmp_path)
    return RunningPipeline(made, work)._begin()


def test_a_start_returns_when_the_query_runs_and_stop_waits_for_its_end(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def work(stop: Stop, runs: Callable[[], None]) -> None:
        runs()
        while not stop.requested:
            goes_on.wait(0.01)

    run = running(tmp_path, work)
    assert (run.status, run.is_active, run.progress) == ("running", True, None)
    assert not run.await_termination(0.01)
    run.stop()
    assert (run.status, run.is_active, run.exception) == ("stopped", False, None)
    assert run.await_termination()


def test_what_has_ended_with_its_input_is_not_stopped_by_stopping_it(tmp_path: Path) -> None:
    with running(tmp_path, lambda stop, runs: runs()) as run:
        assert run.await_termination()
    assert run.status == "ended"


def test_a_start_raises_what_it_fails_on(tmp_path: Path) -> None:
    def work(stop: Stop, runs: Callable[[], None]) -> None:
        raise CatchwaterError("there is no such topic")

    with pytest.raises(CatchwaterError, match="no such topic"):
        running(tmp_path, work)


def test_what_fails_later_is_raised_to_who_waits(tmp_path: Path) -> None:
    fails = threading.Event()

    def work(stop: Stop, runs: Callable[[], None]) -> None:
        runs()
        fails.wait()
        raise CatchwaterError("the broker is gone")

    run = running(tmp_path, work)
    fails.set()
    with pytest.raises(CatchwaterError, match="the broker is gone"):
        run.await_termination()
    assert run.status == "failed"
    assert str(run.exception) == "the broker is gone"


def test_the_next_start_learns_what_ended_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LedgerDamaged("commits/7 is no JSON")

    monkeypatch.setattr(driver, "run_pipeline", broken)
    # Another file's session may live on in this process: a run of tests shares one.
    monkeypatch.setattr(session, "check_alone", lambda: None)
    made = Pipeline("cards", CardRisk, source=KAFKA, sinks=[Topic("alerts")], folder=tmp_path)
    with pytest.raises(LedgerDamaged):
        made.start()
    left = take_report(made.config.checkpoint)
    assert left is not None and left.message == "commits/7 is no JSON"


def test_what_users_import_is_there() -> None:
    assert all(getattr(catchwater, name) for name in catchwater.__all__)
