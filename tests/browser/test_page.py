"""The page in a browser: every page, on a desk and on a phone, in the light and in the dark.

The reports here are sent by the test, through the path by which pipelines report.
"""

import json
import re
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.browser.conftest import picture
from tests.conftest import BrokerProcess, until
from tests.unit.web.reports import report

from catchwater.clock import SYSTEM
from catchwater.drill.result import Finding, Result, write_result
from catchwater.verdicts import PipelineStatus, Verdict
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

PAGES = [
    "/", "/pipelines/card-risk", "/topics", "/topics/payments", "/groups", "/groups/billing",
    "/reset/billing", "/reset/billing?to=earliest", "/reset/billing?to=soon",
    "/transactions", "/brokers", "/drills", "/timeline", "/audit",
]  # fmt: skip


def send(broker: BrokerProcess, status: PipelineStatus) -> None:
    """As a running pipeline does."""
    url = f"{broker.control_url}/api/v1/pipelines/{status.name}/report"
    body = msgspec.json.encode(msgspec.structs.replace(status, reported_ms=SYSTEM.now_ms()))
    with urllib.request.urlopen(urllib.request.Request(url, body, method="PUT"), timeout=60) as got:
        assert got.status == 200


def record(broker: BrokerProcess, path: str) -> Any:
    """What a page shows, as JSON."""
    asked = urllib.request.Request(
        broker.control_url + path, headers={"accept": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return json.load(reply)


@pytest.fixture(scope="module")
def broker(
    make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory
) -> BrokerProcess:
    """With a topic, groups, a result of a drill, and a pipeline that has reported."""
    drills = tmp_path_factory.mktemp("drills")
    finding = Finding("rows missing", "pass", 0, 0, "rows")
    write_result(
        drills,
        Result("kill-task", "catchwater", "pass", [finding], "it comes back", "one pipeline", [],
               ["killed a task"], None, SYSTEM.now_ms() - 60_000, 12.0, 9.0, 10.0),
    )  # fmt: skip
    process = make_broker({"catchwater.drills.dir": str(drills)})
    with Client(process.bootstrap, timeout_s=60) as client:
        client.create_topics({"payments": 4, **{f"orders.{n:02d}": 2 for n in range(60)}})
        batch = encode_batch([(None, b"x" * 100, SYSTEM.now_ms(), [])] * 100)
        client.produce([(("payments", partition), batch) for partition in range(4)])
        client.commit("billing", {("payments", 0): 40, ("payments", 1): 100})
    send(process, report())
    return process


@pytest.mark.parametrize(("shape", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_every_page_is_whole_and_no_wider_than_the_screen(
    broker: BrokerProcess, look: Callable[..., Any], shape: str, scheme: str
) -> None:
    send(broker, report())
    page = look(broker.control_url, shape, scheme)
    drill = record(broker, "/drills")["panels"][0]["table"]["rows"][0][0]["href"]
    for path, name in [*((path, path) for path in PAGES), (drill, "drill")]:
        page.goto(broker.control_url + path)
        page.wait_for_selector("#live time")
        assert page.title().endswith("Catchwater")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        narrow = "[...document.querySelectorAll('main *')].filter(e => e.scrollWidth > innerWidth"
        assert page.evaluate(f"{narrow} && !e.closest('.scroll')).length") == 0, path
        kept = re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "overview"
        picture(page, f"{shape}-{scheme}-{kept}")


def test_a_verdict_changes_where_it_stands_without_a_reload(
    broker: BrokerProcess, look: Callable[..., Any]
) -> None:
    send(broker, report())
    page = look(broker.control_url)
    page.wait_for_selector(".verdict.is-ok >> nth=2")
    page.evaluate("window.same = true")
    wrong = Verdict("fail", "The sink alerts differs: 1 altered.", "catchwater sink verify c.toml")
    send(broker, report(correct=wrong))
    page.wait_for_selector(".verdict.is-fail .reason:has-text('1 altered')")
    assert page.evaluate("window.same")
    assert page.title() == "✘ Overview · Catchwater"
    assert page.inner_text(".heading .about") == "1 pipeline: 1 failing"
    assert page.inner_text(".verdict.is-fail code") == "catchwater sink verify c.toml"
    until(lambda: "correct: fail" in json.dumps(record(broker, "/timeline")))
    send(broker, report())
    page.wait_for_selector(".verdict.is-ok >> nth=2")


def test_the_next_command_is_copied(broker: BrokerProcess, look: Callable[..., Any]) -> None:
    page = look(
        broker.control_url + "/groups/billing", permissions=["clipboard-read", "clipboard-write"]
    )
    page.click("main button.copy >> nth=0")
    page.wait_for_selector("button.copy:has-text('copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == (
        f"catchwater group reset billing --by-duration 2h --bootstrap {broker.bootstrap}"
    )
    page.evaluate("navigator.clipboard.writeText('')")
    page.keyboard.press("c")
    page.wait_for_selector("button.copy:has-text('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == copied


def test_a_list_is_sorted_searched_and_turned_by_keys_alone(
    broker: BrokerProcess, look: Callable[..., Any]
) -> None:
    page = look(broker.control_url)
    page.keyboard.press("2")
    page.wait_for_url("**/topics")
    assert page.inner_text("tbody tr td >> nth=0") == "payments"
    page.keyboard.press("/")
    page.keyboard.type("orders.0")
    page.keyboard.press("Enter")
    page.wait_for_url("**find=orders.0*")
    assert page.locator("tbody tr").count() == 10
    page.goto(broker.control_url + "/topics?sort=name&order=asc")
    page.get_by_role("link", name="more").press("Enter")
    page.wait_for_url("**page=2*")
    assert page.inner_text("tbody tr td >> nth=0") == "orders.50"
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("2")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="hidden")
    assert page.url.endswith("page=2"), "while the keys are shown, they go nowhere"
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders.50")
    page.keyboard.press("u")
    page.wait_for_url("**/topics")


def test_nothing_inline_could_run_and_nothing_is_loaded_from_elsewhere(
    broker: BrokerProcess, look: Callable[..., Any]
) -> None:
    page, asked = look("about:blank"), []
    page.on("request", lambda request: asked.append(request.url))
    reply = page.goto(broker.control_url + "/topics?find=%3Cscript%3Ealert(1)%3C/script%3E")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>alert" not in page.content()
    assert page.locator("[style], [onclick], [onload], script:not([src]), style").count() == 0
    assert {url.split("/")[2] for url in asked} == {broker.control_url.split("/")[2]}


def test_a_page_without_scripts_says_the_same(
    broker: BrokerProcess, look: Callable[..., Any]
) -> None:
    send(broker, report())
    page = look(broker.control_url + "/pipelines/card-risk", java_script_enabled=False)
    assert page.locator(".verdict").count() == 3
    assert "12\u202f441 of 12\u202f441 rows" in page.inner_text("#panel-correct")


def test_numbers_are_plotted_from_the_history(
    broker: BrokerProcess, look: Callable[..., Any]
) -> None:
    page = look(broker.control_url + "/brokers")
    page.wait_for_selector("figure.chart canvas")
    page.wait_for_selector(".u-legend :text-matches('[0-9] %')")  # the newest, with no hand on it
    page.click("button[data-span=week]")
    page.wait_for_selector("button[data-span=week][aria-pressed=true]")


def test_what_is_not_there_is_said_on_a_page(broker: BrokerProcess, chromium: Any) -> None:
    page = chromium.new_page()
    reply = page.goto(broker.control_url + "/topics/none")
    assert reply.status == 404
    assert "There is no topic none." in page.inner_text("main")
    with Client(broker.bootstrap, timeout_s=60) as client:
        client.create_topics({"none": 1})
    page.wait_for_selector("#panel-partitions", timeout=60_000)
    page.close()


def test_a_group_is_moved_once_it_was_shown_what_that_does(
    broker: BrokerProcess, chromium: Any
) -> None:
    with Client(broker.bootstrap, timeout_s=60) as client:
        client.commit("moved", {("payments", 0): 40})
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    page.goto(broker.control_url + "/groups/moved")
    page.fill("input[name=to]", "earliest")
    page.keyboard.press("Enter")
    page.wait_for_url("**/reset/moved?to=earliest*")
    assert "40 records read again" in page.inner_text("#panel-moves")
    with Client(broker.bootstrap, timeout_s=60) as client:
        assert client.committed("moved") == {("payments", 0): 40}
        client.commit("moved", {("payments", 0): 50})
    page.click("button[data-post]")
    page.wait_for_selector("output:has-text('has moved in payments-0 meanwhile')")
    page.get_by_role("button", name="Show what it would do").click()
    page.wait_for_selector("#panel-moves :text('50 records read again')")
    page.click("button[data-post]")
    page.wait_for_url("**/groups/moved")
    with Client(broker.bootstrap, timeout_s=60) as client:
        assert client.committed("moved")["payments", 0] == 0
    page.close()


@pytest.mark.slow
def test_a_silent_broker_leaves_nothing_green(
    make_broker: Callable[..., BrokerProcess], chromium: Any
) -> None:
    broker = make_broker()
    send(broker, report())
    page = chromium.new_page()
    page.goto(broker.control_url)
    page.wait_for_selector(".verdict.is-ok >> nth=2", timeout=60_000)
    broker.kill()
    page.wait_for_selector("body.silent", timeout=60_000)
    assert page.locator("main .ok").count() == 0
    start = page.inner_text("#silent .command code")
    assert start.startswith("cd ") and " && catchwater broker run " in start
    assert page.locator(".verdict.is-unknown").count() == 3
    broker.start()
    send(broker, report())
    page.wait_for_selector("body:not(.silent) .verdict.is-ok >> nth=2", timeout=60_000)
    page.close()


@pytest.mark.slow
def test_seven_hundred_topics_are_painted_within_a_second(
    make_broker: Callable[..., BrokerProcess], look: Callable[..., Any]
) -> None:
    broker = make_broker()
    with Client(broker.bootstrap, timeout_s=60) as client:
        for first in range(0, 700, 100):
            client.create_topics({f"topic.{n:03d}": 14 for n in range(first, first + 100)})
    page = look(broker.control_url + "/topics")
    assert "700 topics, 9\u202f800 partitions" in page.inner_text(".heading")
    paints = []
    painted = "performance.getEntriesByName('first-contentful-paint')"
    for _ in range(10):
        time.sleep(0.1)
        page.reload()
        # The page's policy lets Playwright itself wait for no expression.
        until(lambda: page.evaluate(f"{painted}.length"))
        paints.append(page.evaluate(f"{painted}[0].startTime"))
    assert min(paints) < 1000
