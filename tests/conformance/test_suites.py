"""What `make suites` rests on: which failures are excused, and which excuses nobody needs."""

from xml.etree import ElementTree

import pytest
from conformance.suites.__main__ import EXPECTED, SUITES
from conformance.suites.command_line import DECLARE
from conformance.suites.expected import Expected, judge, read_expected
from conformance.suites.kafka_python import outcomes
from conformance.suites.outcome import Outcome
from conformance.suites.tools.cases import CASES
from conformance.suites.tools.jvm import Said, Wrong

PASSED = Outcome("starts", "passed")
ONE, TWO = Outcome("reads[one]", "failed", "late"), Outcome("reads[two]", "failed", "late")
SKIPPED = Outcome("writes", "skipped", "no codec")


def test_a_failure_is_excused_by_its_name_and_its_brackets_are_no_pattern():
    excuse = Expected("s", "reads[one]", "slow")
    verdict = judge("s", "kafka", [PASSED, ONE, TWO, SKIPPED], [excuse])
    assert verdict.explained == [(ONE, "slow")]
    assert verdict.unexplained == [TWO]
    assert verdict.stale == []


def test_a_star_fits_anything_and_the_first_excuse_is_taken():
    first, second = Expected("s", "reads*", "slow"), Expected("s", "reads[two]", "broken")
    verdict = judge("s", "kafka", [ONE, TWO], [first, second])
    assert [reason for _, reason in verdict.explained] == ["slow", "slow"]
    assert verdict.stale == [second]


def test_an_excuse_for_what_passes_or_is_skipped_is_stale_unless_it_says_sometimes():
    excuses = [Expected("s", "starts", "slow"), Expected("s", "writes", "slow")]
    excuses.append(Expected("s", "reads*", "slow", sometimes=True))
    verdict = judge("s", "kafka", [PASSED, SKIPPED], excuses)
    assert verdict.stale == excuses[:2]


def test_an_excuse_of_another_suite_or_another_broker_is_neither_used_nor_stale():
    others = [Expected("t", "*", "slow"), Expected("s", "*", "slow", against="catchwater")]
    verdict = judge("s", "kafka", [ONE], others)
    assert verdict.unexplained == [ONE]
    assert verdict.stale == []


def test_the_file_of_excuses_names_suites_that_are_there_and_gives_reasons():
    for excuse in read_expected(EXPECTED):
        assert excuse.suite in SUITES
        assert excuse.against in ("*", "catchwater", "kafka")
        assert excuse.reason


def test_of_a_report_of_pytest_an_error_while_setting_up_is_a_failure():
    report = ElementTree.fromstring(
        """<testsuites><testsuite>
        <testcase classname="test.integration.test_admin_integration" name="test_a"/>
        <testcase classname="test.integration.test_admin_integration" name="test_b[1]">
          <error message="first&#10;second"/></testcase>
        <testcase classname="test.test_ssl.TestTls" name="test_c"><skipped message="no"/></testcase>
        </testsuite></testsuites>"""
    )
    assert list(outcomes(report)) == [
        Outcome("admin_integration::test_a", "passed"),
        Outcome("admin_integration::test_b[1]", "failed", "first"),
        Outcome("ssl.TestTls::test_c", "skipped", "no"),
    ]


def test_a_tool_is_held_to_its_status_and_to_what_it_printed():
    fine, failed = Said("topics", 0, "Created topic a.\nb\n", ""), Said("topics", 1, "", "exists\n")
    fine.tells("^Created", "^b$").lacks("^Created$")
    failed.refuses("exists").complains("exists")
    for wrong in (
        lambda: fine.tells("^Created$"),
        lambda: fine.refuses("Created"),
        lambda: fine.lacks("^b$"),
        lambda: failed.tells("exists"),
        lambda: failed.refuses("topic"),
        lambda: failed.complains("topic"),
    ):
        with pytest.raises(Wrong):
            wrong()


def test_of_a_stack_trace_the_cause_is_shown():
    trace = "Error while executing\n\tat Tools.run\nCaused by: NotServed: no such API\n"
    with pytest.raises(Wrong, match=r"^acls ended with status 1: NotServed: no such API$"):
        Said("acls", 1, "", trace).tells()


def test_no_two_cases_of_the_tools_share_a_name():
    assert len({case.name for case in CASES}) == len(CASES) > len(DECLARE)
