"""Why Spark's executors are not there, by what Kubernetes says of their pods.

Asks with Spark's own client, by the settings that Spark has, once a start has waited in vain. What
is said is one line: the pod, and the reason that its node or the scheduler has for it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWERED = re.compile(r"Message: ((?:(?!Message: ).)*?)\.? Received status: ")
_FAILURES = re.compile(r"Max number of executor failures \((\d+)\) reached")
_AUTHENTICATION = "spark.kubernetes.authenticate"


def why(spark: "SparkSession") -> str:
    """What keeps a session's executors from running, as one sentence."""
    from py4j.protocol import Py4JError, Py4JJavaError

    context = spark.sparkContext
    jvm, conf = context._jvm, context._jsc.sc().conf()
    master = context.master.removeprefix("k8s://")
    namespace = conf.get("spark.kubernetes.namespace", "default")
    try:
        factory = jvm.org.apache.spark.deploy.k8s.SparkKubernetesClientFactory
        kinds = getattr(jvm, f"{factory._fqn}$ClientType$")
        client = factory.createKubernetesClient(
            master, jvm.scala.Option.apply(namespace), _AUTHENTICATION,
            getattr(kinds, "MODULE$").Driver(), conf, jvm.scala.Option.empty(),
        )  # fmt: skip
        try:
            pods = client.pods().inNamespace(namespace)
            found = pods.withLabel("spark-app-selector", context.applicationId).list()
            text = jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson(found)
        finally:
            client.close()
    except Py4JJavaError as error:
        said = str(error.java_exception)
        return said_by_api(said) or said.splitlines()[0]
    except (Py4JError, OSError) as error:
        return f"its pods could not be asked for ({error})"
    return explain(msgspec.json.decode(text).get("items", ()), namespace)


def said_by_api(text: str) -> str:
    """What the API server answered, out of its client's exception, or the last one in a log."""
    found = _ANSWERED.findall(" ".join(text.split()))
    return found[-1] if found else ""


def given_up(log: str) -> str:
    """Why Spark has given a start up, by what it has said; nothing where it has not."""
    failures = _FAILURES.search(log)
    if failures is None:
        return ""
    why = f", and Kubernetes says: {refused}" if (refused := said_by_api(log)) else ""
    return f"{failures[1]} executors have failed one after the other{why}"


def explain(pods: Sequence[Mapping[str, Any]], namespace: str) -> str:
    """The first of these pods that has a reason not to run, and the reason. Pure."""
    reasons = [(pod, reason) for pod in pods if (reason := _reason(pod.get("status") or {}))]
    if reasons:
        pod, reason = reasons[0]
        of = f" (one of {len(reasons)} that do not run)" if len(reasons) > 1 else ""
        return f"pod {pod['metadata']['name']}{of} {reason}"
    if pods:
        states = sorted({(pod.get("status") or {}).get("phase", "Pending") for pod in pods})
        return f"its {len(pods)} pods in namespace {namespace} are {' and '.join(states)}"
    return f"there is none of its pods in namespace {namespace}"


def _reason(status: Mapping[str, Any]) -> str:
    """Why a pod does not run, by its status; nothing if it gives no reason."""
    for container in status.get("containerStatuses", ()):
        state = container.get("state") or {}
        if (waits := state.get("waiting")) and waits.get("reason") not in _ON_ITS_WAY:
            return f"waits: {_told(waits)}"
        if ended := state.get("terminated"):
            return f"has ended with exit code {ended.get('exitCode')}: {_told(ended)}"
    for each in status.get("conditions", ()):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"has no node: {_told(each)}"
    if status.get("phase") == "Failed":
        return f"has failed: {_told(status)}"
    return ""


_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")


def _told(by: Mapping[str, Any]) -> str:
    """Reason and message, as far as they are given, without the last full stop."""
    told = ": ".join(str(by[each]).strip() for each in ("reason", "message") if by.get(each))
    return " ".join(told.split()).rstrip(".") or "no reason is given"
