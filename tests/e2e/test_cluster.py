"""Pipelines on clusters, all of it on this machine, or each on a host."""

import copy
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import until
from tests.e2e.conftest import PATIENCE_S, Cards, Place
from tests.e2e.test_one_url import Machine
from tests.kubernetes import Image, Kubernetes
from tests.s3 import CREDENTIALS
from tests.spark_cluster import OF_EXECUTORS, Cluster, newest, started, yarn
from tests.test_docs import BLOCK, ROOT

from catchwater.recovery.ledger import EpochEntry

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

HEADERS = 16 << 10
"""Of the objects of a small state."""


@contextmanager
def standalone(folder: Path, cores: int) -> Iterator[dict[str, str]]:
    """A master with one worker: what a driver's environment needs to use it."""
    processes = []
    try:
        process, url = started(
            folder, "Master", "--port", "0", says=r"Starting Spark master at (\S+)"
        )
        processes.append(process)
        process, _ = started(
            folder, "Worker", "--cores", str(cores), "--memory", "2g", "--work-dir",
            str(folder / "work"), url, says="(Successfully registered with master)",
        )  # fmt: skip
        processes.append(process)
        yield {"CATCHWATER_SPARK__MASTER": url}
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


@pytest.mark.parametrize(("cluster", "cores"), [(standalone, 2), (yarn, 3)])
def test_a_pipeline_on_a_cluster_writes_each_row_once(
    make_pipeline: Callable[[str], Any], tmp_path: Path, cluster: Any, cores: int
) -> None:
    pipeline = make_pipeline(cluster.__name__)
    with cluster(tmp_path, cores) as settings, pytest.MonkeyPatch.context() as environment:
        for name, value in (settings | OF_EXECUTORS).items():
            environment.setenv(name, value)
        pipeline.start(epoch_events=1500)
        pipeline.wait_until(lambda: pipeline.is_written(2))
        pipeline.kill()
        assert pipeline.run_to_end(epoch_events=1500) == 0, pipeline.log
    assert pipeline.rows == pipeline.cards.expected
    entry = pipeline.ledger.read(max(pipeline.ledger.epochs()))
    assert entry is not None and {each.host for each in entry.shards} == {platform.node()}


def on_page(language: str) -> str:
    """What the page's section on Kubernetes shows in this language."""
    section = (ROOT / "docs/spark.md").read_text().split("## Kubernetes\n")[1].split("\n## ")[0]
    return "".join(code for name, code in BLOCK.findall(section) if name == language)


@dataclass
class OfPage:
    """What the page shows, and a pipeline by it."""

    cluster: Kubernetes
    machine: Machine
    """Whose folder is the one in the image."""
    driver: Any
    """The pod of the page's Deployment."""
    role: Any

    def write_file(self, trigger: str) -> None:
        path = self.machine.write_file(trigger, epoch_events=1500)
        path.write_text(path.read_text().replace('local = "local"\n', "") + on_page("toml"))

    def start(self, name: str, **more: str) -> None:
        """A pod for the driver, as the Deployment would have it."""
        template = copy.deepcopy(self.driver)
        [container] = template["spec"]["containers"]
        container["env"] += [{"name": key, "value": value} for key, value in more.items()]
        self.cluster.create("pods", name, **template)

    def phase(self, pod: str) -> str:
        found = self.cluster.get("pods", pod)
        return found.get("status", {}).get("phase", "Pending")

    def said(self, pod: str) -> str:
        return self.cluster.log(pod) if pod in self.cluster.pods else "It was not started."


QUICK_PODS = OF_EXECUTORS | {
    "CATCHWATER_SPARK__SPARK_EXECUTOR_INSTANCES": "2",
    "CATCHWATER_SPARK__SPARK_KUBERNETES_TRUST_CERTIFICATES": "true",
}


@pytest.fixture
def of_page(place: Place, cards_there: Cards, tmp_path: Path) -> Iterator[OfPage]:
    image = Image(on_page("dockerfile"), tmp_path / "image")
    machine = Machine(
        cards_there, tmp_path / "image/app", "pods", url=place.url.replace("?", "/pods?")
    )
    machine.folder.mkdir(parents=True)
    objects = {each["kind"]: each for each in yaml.safe_load_all(on_page("yaml"))}
    template = objects["Deployment"]["spec"]["template"]
    [container] = template["spec"]["containers"]
    space = objects["Deployment"]["metadata"]["namespace"]
    with Kubernetes(place.network, tmp_path, {container["image"]: image}, space) as cluster:
        [source] = container["envFrom"]
        cluster.create("secrets", source["secretRef"]["name"], stringData=CREDENTIALS)
        yield OfPage(cluster, machine, template, objects["Role"])


def test_a_pipeline_in_pods_by_the_page_writes_each_row_once(of_page: OfPage) -> None:
    cluster, machine = of_page.cluster, of_page.machine
    of_page.write_file("continuous")
    of_page.start("cards-1", **QUICK_PODS)
    until(
        lambda: newest(machine.checkpoint) >= 2 or of_page.phase("cards-1") == "Failed",
        PATIENCE_S, lambda: of_page.said("cards-1"),
    )  # fmt: skip
    assert of_page.phase("cards-1") == "Running", of_page.said("cards-1")
    # Its pods go with it.
    cluster.delete("pods", "cards-1")
    until(lambda: not cluster.get("pods"), PATIENCE_S, lambda: cluster.get("pods"))

    of_page.write_file("available-now")
    of_page.start("cards-2", **QUICK_PODS)
    until(
        lambda: of_page.phase("cards-2") in ("Succeeded", "Failed"),
        PATIENCE_S, lambda: of_page.said("cards-2"),
    )  # fmt: skip
    assert of_page.phase("cards-2") == "Succeeded", of_page.said("cards-2")
    assert machine.rows == machine.cards.expected
    assert newest(machine.checkpoint) > 2
    entry = machine.ledger.read(max(machine.ledger.epochs()))
    assert entry is not None
    hosts = {each.host for each in entry.shards}
    assert hosts and hosts <= {pod for pod in cluster.pods if "-exec-" in pod}
    rules = of_page.role["rules"]
    may = {(verb, kind) for each in rules for verb in each["verbs"] for kind in each["resources"]}
    assert cluster.asked <= may


IMAGE = "CATCHWATER_SPARK__SPARK_KUBERNETES_CONTAINER_IMAGE"


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ("configmaps", {}, r"Spark does not start on k8s://\S+: configmaps is forbidden: User"),
        ("pods", {}, r"\d executors have failed .*, and Kubernetes says: pods is forbidden: User"),
        ("", {IMAGE: "none:1"}, r"within 120 s: pod \S+-exec-\d .*waits: ImagePullBackOff: "),
        ("", {IMAGE: "ends:1"}, r"Spark does not start on k8s://\S+: \d executors have failed"),
    ],
    ids=["no-right-to-config-maps", "no-right-to-pods", "no-such-image", "not-our-entry-point"],
)
def test_what_keeps_pods_from_running_is_said_in_one_line(
    of_page: OfPage, kind: str, more: dict[str, str], told: str
) -> None:
    cluster = of_page.cluster
    [image] = cluster.images.values()
    cluster.images["ends:1"] = copy.copy(image)
    cluster.images["ends:1"].entry_point = ["false"]
    if kind:
        cluster.forbid("post", kind, f'{kind} is forbidden: User "cards" cannot create resource')
    of_page.write_file("continuous")
    of_page.start("cards-1", **QUICK_PODS, **more)
    until(
        lambda: re.search(f"WARNING .*{told}", of_page.said("cards-1")),
        PATIENCE_S, lambda: of_page.said("cards-1"),
    )  # fmt: skip


def test_a_worker_that_is_lost_with_its_disk_costs_its_shards_and_no_row(
    place: Place, cards_there: Cards, tmp_path: Path
) -> None:
    """Master, workers and driver are hosts with disks of their own; the store holds the rest."""
    url = place.url.replace("?", "/apart?")
    machine = Machine(cards_there, tmp_path / "driver", "apart", url=url)
    machine.folder.mkdir()
    with Cluster(place.network, tmp_path, [machine.folder]) as cluster:
        driver = cluster.host("dr")
        machine.prefix = driver.prefix
        lost, left = cluster.add("wa"), cluster.add("wb")
        with pytest.MonkeyPatch.context() as environment:
            settings = {"CATCHWATER_SPARK__MASTER": cluster.url, **OF_EXECUTORS}
            for name, value in (settings | {"CATCHWATER_RECOVERY__RETAIN": "1000"}).items():
                environment.setenv(name, value)
            machine.start("available-now", epoch_events=500)
            machine.wait_until(lambda: machine.is_written(8))
            cluster.lose("wa")
            lost_at = machine.committed
            try:
                assert machine.wait() == 0, machine.log
            finally:
                driver.kill()
    assert machine.rows == machine.cards.expected

    ledger = machine.ledger
    entries = [entry for each in ledger.epochs() if (entry := ledger.read(each))]
    hosts = [{shard.host for shard in entry.shards} for entry in entries]
    assert hosts[lost_at] == {lost.name, left.name}
    assert hosts[-1] == {left.name} and lost_at < entries[-1].epoch
    # Once each has its share, a shard stays where it is, and reads nothing.
    settled = next(n for n, each in enumerate(hosts) if len(each) > 1)
    for before, after in pairwise(entries[settled : lost_at + 1]):
        assert places(before) == places(after)
        assert not any(shard.rebuilt_bytes for shard in after.shards)
    # What was on the lost one is read once, and nothing else is.
    held = entries[lost_at]
    gone = {shard.shard for shard in held.shards if shard.host == lost.name}
    read = {
        shard.shard: shard.rebuilt_bytes
        for entry in entries[lost_at + 1 :]
        for shard in entry.shards
        if shard.rebuilt_bytes
    }
    assert gone and set(read) == gone
    for shard in held.shards:
        assert read.get(shard.shard, 0) <= 1.05 * shard.state_bytes + HEADERS


def places(entry: EpochEntry) -> dict[tuple[int, int], str]:
    """The host of each shard."""
    return {(each.stage, each.shard): each.host for each in entry.shards}
