"""What an executor's pod is told and starts, and what is said of pods that do not."""

from pathlib import Path
from typing import Any

import pytest

from catchwater.pipeline.spark.executor import NoExecutor, command
from catchwater.pipeline.spark.pods import explain, given_up, said_by_api

SAID = {
    "SPARK_DRIVER_URL": "spark://d:1",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "cards-exec-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
}


def test_an_executor_is_started_with_what_spark_says_in_its_environment() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dat={number}" for number in (10, 9, 0)}
    own = {"SPARK_CLASSPATH": "/own.jar", "SPARK_JAVA_OPT_": "none"}
    made = command(SAID | options | own, Path("/java"), Path("/spark/jars"))
    assert made[:5] == ["/java", "-Dat=0", "-Dat=9", "-Dat=10", "-Xmx1024m"]
    assert made[5:7] == ["-cp", "/opt/spark/conf:/spark/jars/*:/own.jar"]
    assert made[7].endswith(".KubernetesExecutorBackend")
    told = dict(zip(made[8::2], made[9::2], strict=True))
    assert told == {
        "--driver-url": "spark://d:1", "--executor-id": "7", "--cores": "2", "--app-id": "app",
        "--hostname": "10.0.0.7", "--resourceProfileId": "0", "--podName": "cards-exec-7",
    }  # fmt: skip


def test_who_is_no_executor_is_told_what_was_not_said() -> None:
    with pytest.raises(NoExecutor, match="SPARK_DRIVER_URL, SPARK_EXECUTOR_ID") as raised:
        command({}, Path("/java"), Path("/jars"))
    assert raised.value.exit_code == 2
    with pytest.raises(NoExecutor, match="here: SPARK_EXECUTOR_MEMORY is not set"):
        command(SAID | {"SPARK_EXECUTOR_MEMORY": ""}, Path("/java"), Path("/jars"))


def pod(number: int, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"exec-{number}"}, "status": status}


def state(**of: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": of}]}


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        ([], "there is none of its pods in namespace cards"),
        ([{"metadata": {"name": "exec-1"}}], "its 1 pods in namespace cards are Pending"),
        ([pod(1, phase="Running"), pod(2)], "its 2 pods in namespace cards are Pending and Run"),
        (
            [pod(1), pod(2, **state(waiting={"reason": "ImagePullBackOff", "message": "no a:1."}))],
            "pod exec-2 waits: ImagePullBackOff: no a:1",
        ),
        (
            [pod(number, **state(waiting={"reason": "ErrImagePull"})) for number in (1, 2)],
            "pod exec-1 (one of 2 that do not run) waits: ErrImagePull",
        ),
        ([pod(1, **state(waiting={"reason": "ContainerCreating"}))], "its 1 pods in namespace"),
        (
            [pod(1, **state(terminated={"exitCode": 137, "reason": "OOMKilled"}))],
            "pod exec-1 has ended with exit code 137: OOMKilled",
        ),
        (
            [pod(1, conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": "0/3 nodes are available:\n3 Insufficient cpu."}])],
            "pod exec-1 has no node: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu",
        ),
        ([pod(1, phase="Failed", reason="Evicted")], "pod exec-1 has failed: Evicted"),
        ([pod(1, phase="Failed")], "pod exec-1 has failed: no reason is given"),
    ],
)  # fmt: skip
def test_why_pods_do_not_run_is_one_line(pods: list[dict[str, Any]], told: str) -> None:
    found = explain(pods, "cards")
    assert found.startswith(told) and "\n" not in found


def test_what_kubernetes_refuses_is_said_in_its_own_words_alone() -> None:
    raised = (
        "io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at: "
        'https://k/api/v1/namespaces/cards/pods. Message: pods is forbidden: User "u" cannot '
        "create.\nReceived status: Status(apiVersion=v1, code=403)."
    )
    assert said_by_api(raised) == 'pods is forbidden: User "u" cannot create'
    again = raised.replace("pods is", "pods still is")
    assert said_by_api(f"{raised}\n\tat X\n{again}").startswith("pods still is forbidden")
    assert said_by_api("java.net.ConnectException: refused") == ""

    over = (
        "07:07:03 ERROR ExecutorPodsLifecycleManager: Max number of executor failures (4) reached"
    )
    assert given_up(raised) == ""
    assert given_up(over) == "4 executors have failed one after the other"
    assert given_up(f"{raised}\n{over}").endswith('says: pods is forbidden: User "u" cannot create')
