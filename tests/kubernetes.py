"""Kubernetes on this machine: an API server by fabric8, and a node that runs pods as hosts.

What stands in `docs/spark.md` is what runs here: the image is this machine beneath a layer of
files, with the entry point, environment, user and folder of the page's Dockerfile; a pod is a
process in namespaces of its own, on a host (`tests.hosts`), over a disk that goes with it. The API
server is a mock that keeps what it is given and tells who watches; it lets everybody do everything,
so what it was asked for is kept (`asked`), to be held against the page's Role. Needs root, overlay
file systems, Maven and tini.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.kafka_jars import jars
from py4j.java_gateway import JavaGateway
from tests.hosts import Host, Network
from tests.spark_cluster import QUICK, SPARK

from catchwater.pipeline.spark.session import find_java

_LOOK_S = 0.05
_HTTPS = 443
_BACK_OFF = "ImagePullBackOff"
_REQUEST = re.compile(r"received request: (\S+) (/\S+) HTTP")
_OURS = "by=the-node"
_ANY = ssl._create_unverified_context()
_KINDS = {"pods": "Pod", "secrets": "Secret"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_START = """set -e
mkdir "$0"/disk && mount -t tmpfs tmpfs "$0"/disk && cd "$0"/disk && mkdir up work root
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root && cp -a "$LAYER"/. root/
mount -t proc proc root/proc && mount --bind /dev root/dev && mount -t tmpfs tmpfs root/dev/shm
printf "127.0.0.1 localhost\\n$ADDRESS $NAME\\n$API kubernetes.default.svc\\n" > root/etc/hosts
hostname "$NAME"
for each in $VOLUMES; do
  mkdir -p root"${each#*:}" && mount --bind "$0/${each%%:*}" root"${each#*:}"
done
exec chroot root setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups \\
  env -i -C "$FOLDER" "$@"
"""
"""In a pod's namespaces; `$0` is its folder."""


class Image:
    """An image by its Dockerfile: its layer is what the test puts into `files`."""

    def __init__(self, dockerfile: str, files: Path) -> None:
        """`dockerfile`: its text. Whatever it installs has to be on this machine."""
        self.files = files
        said = dict(re.findall(r"^(ENTRYPOINT|WORKDIR|USER) (.*)$", dockerfile, re.MULTILINE))
        self.entry_point: list[str] = json.loads(said["ENTRYPOINT"])
        self.folder, self.user = said["WORKDIR"], int(said["USER"])
        [(user, cache)] = re.findall(
            rf"^RUN useradd --uid {self.user} --create-home (\w+) && install -d -o \w+ (\S+)$",
            dockerfile, re.MULTILINE,
        )  # fmt: skip
        home = f"/home/{user}"
        own = re.findall(
            r"(\w+)=(\S+)", "".join(re.findall(r"^ENV (.*)$", dockerfile, re.MULTILINE))
        )
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
            "HOME": home,
        } | dict(own)
        for each in (home, cache):
            (files / each[1:]).mkdir(parents=True)
            os.chown(files / each[1:], self.user, self.user)
        (files / "etc").mkdir()
        entry = f"{user}:x:{self.user}:{self.user}::{home}:/bin/sh\n"
        (files / "etc/passwd").write_text(Path("/etc/passwd").read_text() + entry)
        # This machine's Python and our source may lie where others must not look.
        for each in (sys.base_prefix, sys.prefix, Path(__file__).parent):
            for folder in reversed(Path(each).resolve().parents):
                (files / str(folder)[1:]).mkdir(exist_ok=True)
        for command in (self.entry_point[0], "setpriv", "unshare"):
            assert shutil.which(command), f"pods need {command}: apt-get install {command}"


@dataclass
class _Running:
    host: Host
    process: "subprocess.Popen[bytes]"
    log: Path


@dataclass
class Kubernetes:
    """An API server, at port 443 of this process's own address, and a node."""

    network: Network
    folder: Path
    images: dict[str, Image]
    namespace: str
    pods: dict[str, _Running] = field(default_factory=dict, init=False)
    """Those that were started, by name; their logs outlive them."""
    _said: "deque[str]" = field(default_factory=deque, init=False)
    _ended: set[str] = field(default_factory=set, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._node = threading.Thread(target=self._work, name="node")

    def __enter__(self) -> "Kubernetes":
        classes = [SPARK / "jars" / "*", *jars("kubernetes").glob("*.jar")]
        self.address = self.network.here
        self._gateway = JavaGateway.launch_gateway(
            classpath=os.pathsep.join(map(str, classes)), javaopts=QUICK.split(),
            java_path=str(find_java().home / "bin" / "java"), redirect_stderr=self._said,
            die_on_exit=True,
        )  # fmt: skip
        java = self._gateway.jvm
        mock, web = java.io.fabric8.kubernetes.client.server.mock, java.io.fabric8.mockwebserver
        answers = java.java.util.HashMap()
        dispatcher = mock.KubernetesMixedDispatcher(answers)
        self.server = mock.KubernetesMockServer(
            web.Context(), web.MockWebServer(), answers, dispatcher, True
        )
        self.server.init(java.java.net.InetAddress.getByName(self.address), _HTTPS)
        self._node.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._node.join()
        for pod in self.pods.values():
            pod.host.kill()
            pod.process.wait()
        self.server.destroy()
        self._gateway.shutdown()

    # What kubectl does.

    def create(self, kind: str, name: str, **what: Any) -> None:
        """An object of this kind: `pods` or `secrets`."""
        metadata = {"name": name, "namespace": self.namespace, **what.pop("metadata", {})}
        one = {"apiVersion": "v1", "kind": _KINDS[kind], "metadata": metadata, **what}
        self._ask("POST", kind, "", one)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, which may be gone."""
        self._ask("DELETE", kind, name)

    def get(self, kind: str, name: str = "") -> Any:
        """An object; none where there is none of this name. Without a name, all of the kind."""
        found = self._ask("GET", kind, name)
        return found if name or not found else found["items"]

    def forbid(self, verb: str, kind: str, said: str) -> None:
        """Answer a request such as `post` for objects of this kind with 403."""
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": said,
                  "reason": "Forbidden", "code": 403}  # fmt: skip
        path = f"/api/v1/namespaces/{self.namespace}/{kind}"
        expected = getattr(self.server.expect(), verb)().withPath(path)
        expected.andReturn(403, json.dumps(status)).always()

    @property
    def asked(self) -> set[tuple[str, str]]:
        """What others have asked of the API server: verbs of kinds of objects."""
        found = {_meant(*each) for line in [*self._said] for each in _REQUEST.findall(line)}
        return found - {None}  # type: ignore[return-value]

    def log(self, pod: str) -> str:
        """What a pod has said."""
        return self.pods[pod].log.read_text()

    def _ask(self, method: str, kind: str, name: str, what: Any = None) -> Any:
        path = f"/api/v1/namespaces/{self.namespace}/{kind}/{name}".rstrip("/")
        body = json.dumps(what).encode() if what is not None else None
        type_ = "merge-patch+json" if method == "PATCH" else "json"
        request = urllib.request.Request(
            f"https://{self.address}{path}?{_OURS}", body, {"Content-Type": f"application/{type_}"},
            method=method,
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60, context=_ANY) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            assert error.code == 404, error.read()
            return None

    # What a node does, and those who clear up.

    def _work(self) -> None:
        while not self._over.wait(_LOOK_S):
            there = {pod["metadata"]["name"]: pod for pod in self.get("pods")}
            uids = {pod["metadata"]["uid"] for pod in there.values()}
            for name, pod in there.items():
                owners = pod["metadata"].get("ownerReferences", ())
                if not uids.issuperset(each["uid"] for each in owners):
                    self.delete("pods", name)
                elif name not in self.pods:
                    self._start(name, pod)
                elif name not in self._ended and self.pods[name].process.poll() is not None:
                    self._ended.add(name)
                    self._tell_end(name, self.pods[name].process.returncode)
            for name, running in self.pods.items():
                if name not in there and running.process.poll() is None:
                    running.host.kill()
                    running.process.wait()

    def _tell(self, name: str, phase: str, state: Any, **more: Any) -> None:
        ready = {"type": "Ready", "status": str(phase == "Running")}
        statuses = [{"name": "it", "ready": phase == "Running", "state": state}]
        status = {"phase": phase, "conditions": [ready], "containerStatuses": statuses, **more}
        self._ask("PATCH", "pods", f"{name}/status", {"status": status})

    def _tell_end(self, name: str, code: int) -> None:
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        self._tell(name, "Failed" if code else "Succeeded", state)

    def _start(self, name: str, pod: Any) -> None:
        [container] = pod["spec"]["containers"]
        image = self.images.get(container["image"])
        if image is None:
            if "status" not in pod:
                waiting = {"reason": _BACK_OFF, "message": f"Back-off pulling {container['image']}"}
                self._tell(name, "Pending", {"waiting": waiting})
            return
        host = self.network.host(f"p{len(self.network.hosts)}")
        own = self.folder / name
        own.mkdir()
        environment = image.environment | dict(self._environment(container, name, host))
        script = {
            "LAYER": str(image.files), "NAME": pod["spec"].get("hostname", name),
            "ADDRESS": host.address, "API": self.address, "USER_ID": str(image.user),
            "FOLDER": image.folder, "VOLUMES": " ".join(self._volumes(pod["spec"], own, image)),
        }  # fmt: skip
        command = [
            *host.prefix, "unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child",
            "sh", "-c", _START, str(own), *(f"{k}={v}" for k, v in environment.items()),
            *container.get("command", image.entry_point), *container.get("args", ()),
        ]  # fmt: skip
        path = own / "log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                command, env=os.environ | script, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.pods[name] = _Running(host, process, path)
        self._tell(name, "Running", {"running": {}}, podIP=host.address)

    def _environment(self, container: Any, name: str, host: Host) -> Iterator[tuple[str, str]]:
        for source in container.get("envFrom", ()):
            yield from self._secret(source["secretRef"]["name"]).items()
        fields = {"status.podIP": host.address, "metadata.name": name}
        for each in container.get("env", ()):
            of = each.get("valueFrom", {})
            if "fieldRef" in of:
                yield each["name"], fields[of["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in of:
                yield (
                    each["name"],
                    self._secret(of["secretKeyRef"]["name"])[of["secretKeyRef"]["key"]],
                )
            else:
                yield each["name"], each.get("value", "")

    def _secret(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.get("secrets", name)["stringData"]
        return found

    def _volumes(self, spec: Any, own: Path, image: Image) -> Iterator[str]:
        """Folders of the pod's, each with the path where it belongs."""
        of = {each["name"]: each for each in spec.get("volumes", ())}
        [container] = spec["containers"]
        for mount in container.get("volumeMounts", ()):
            folder = own / mount["name"]
            folder.mkdir(mode=0o777)
            folder.chmod(0o777)
            if "configMap" in of[mount["name"]]:
                data = self.get("configmaps", of[mount["name"]]["configMap"]["name"])["data"]
                every = [{"key": key, "path": key} for key in data]
                for item in of[mount["name"]]["configMap"].get("items", every):
                    (folder / item["path"]).write_text(data[item["key"]])
            yield f"{mount['name']}:{mount['mountPath']}"


def _meant(method: str, path: str) -> tuple[str, str] | None:
    """A request as a Role has it; none for one of ours."""
    parts = urlsplit(path)
    found = re.fullmatch(r"/api/v1/namespaces/[^/]+/(\w+)(/\S+)?", parts.path)
    if parts.query == _OURS or found is None:
        return None
    if method == "GET":
        query = parse_qs(parts.query)
        return ("watch" if "watch" in query else "get" if found[2] else "list"), found[1]
    if method == "DELETE":
        return ("delete" if found[2] else "deletecollection"), found[1]
    return _VERBS[method], found[1]
