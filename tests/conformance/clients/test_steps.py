"""The runner of `make conformance`, and the clients that need no toolchain through all steps."""

import sys

import pytest
from conformance.programs import Missing, Program, program
from conformance.report import PAGE, explained, reason_for, table, unexplained
from conformance.run import Result, take_steps
from conformance.security import secured
from conformance.steps import STEPS
from conformance.targets import target

SCRIPT = """
import sys
for name in sys.argv[3:]:
    if name == "headers":
        sys.exit("it broke")
    print("a line of the library's")
    print("skip" if name == "acks-0" else "pass", name, "why" if name == "acks-0" else "")
"""


def test_a_program_that_ends_fails_its_step_and_goes_on_with_the_next():
    fake = Program([sys.executable, "-c", SCRIPT], "1")
    told = []
    steps = ["metadata", "headers", "acks-0", "headers"]
    results = take_steps("fake", fake, "host:1", steps, told.append)
    assert results == told
    assert [(r.step, r.outcome, r.reason) for r in results] == [
        ("metadata", "pass", ""),
        ("headers", "fail", "the program ended: it broke"),
        ("acks-0", "skip", "why"),
        ("headers", "fail", "the program ended: it broke"),
    ]


def test_a_program_that_is_silent_fails_its_step(monkeypatch):
    monkeypatch.setattr("conformance.run.TIMEOUT_S", 0.3)
    silent = Program([sys.executable, "-c", "import time; time.sleep(60)"], "1")
    (result,) = take_steps("fake", silent, "host:1", ["metadata"], print)
    assert (result.outcome, result.reason[:26]) == ("fail", "the program did not answer")


def test_only_what_the_page_explains_may_fail():
    page = (
        "| java | headers | not in this table |\n\n## Steps that fail\n\n| client | step | why |\n"
        "|---|---|---|\n| kcat | headers | a reason |\n| all | configs | another |\n\n## Next\n"
        "| java | metadata | nor in this |\n"
    )
    reasons = explained(page)
    assert reasons == {("kcat", "headers"): "a reason", ("all", "configs"): "another"}
    failed = [
        Result(client, step, "fail")
        for client, step in (("kcat", "headers"), ("java", "headers"), ("java", "configs"))
    ]
    assert unexplained([*failed, Result("java", "metadata", "pass")], reasons) == [failed[1]]
    shown = table(["headers", "configs"], ["kcat", "java"], failed, reasons).splitlines()
    assert shown[2:4] == ["| headers | known | FAIL |", "| configs | – | known |"]


def test_every_explained_failure_names_a_step():
    for _, step in explained(PAGE.read_text()):
        assert step in STEPS


def test_a_client_that_has_to_log_in_again_and_again_loses_and_doubles_nothing():
    """`make conformance SECURITY=…` in small: the same over TLS, by SCRAM, with short logins."""
    steps = ["produce-none", "long-session", "txn-commit"]
    with (
        secured("sasl_ssl-scram-512", reauth_s=1.0, session_s=2.5) as way,
        target("catchwater", way.settings) as bootstrap,
    ):
        built = program("librdkafka", way.environment)
        results = take_steps("librdkafka", built, bootstrap, steps, print)
    assert [(r.step, r.outcome, r.reason) for r in results] == [(s, "pass", "") for s in steps]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["librdkafka", "kafka-python", "aiokafka", "kcat"])
def test_a_client_without_a_toolchain_takes_every_step(client, broker):
    try:
        built = program(client)
    except Missing as reason:
        pytest.skip(str(reason))
    results = take_steps(client, built, broker.bootstrap, list(STEPS), print)
    reasons = explained(PAGE.read_text())
    assert unexplained(results, reasons) == []
    assert [r for r in results if r.outcome == "pass" and reason_for(r, reasons)] == []
