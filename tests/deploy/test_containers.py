"""The container files of a new app: their schemas, and their commands, parsed and run without containers."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedsolve.cli.federation import node
from fedsolve.cli.federation.local import OFFLINE, LocalFederation, program
from fedsolve.cli.federation.new import FLOWER, write_app
from fedsolve.cli.main import main
from fedsolve.cli.processes import HOST, free_port
from fedsolve.deploy.persistent.flower_program import VERSION
from fedsolve.deploy.persistent.node_folder import workers_in
from fedsolve.results.clients import read_client_metrics
from fedsolve.results.history import History

yaml = pytest.importorskip("ruamel.yaml")
APPS = {"tables": ("csv", "sklearn", 2), "Digits-1": ("digits", "torch", 3)}
ROOT = Path("/federation")
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@pytest.fixture(params=APPS)
def app(request, tmp_path):
    write_app(tmp_path / request.param, *APPS[request.param])
    return tmp_path / request.param


def compose_of(app, **variables):
    """The compose file, with variables as Docker sets them."""
    text = (app / "containers" / "compose.yaml").read_text()
    text = _VARIABLE.sub(lambda found: variables.get(found[1], found[2]), text)
    assert "$" not in text
    return yaml.YAML(typ="safe").load(text)


def manifests_of(app):
    """The Kubernetes objects, by kind and name."""
    objects = list(yaml.YAML(typ="safe").load_all((app / "containers" / "kubernetes.yaml").read_text()))
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


def pods_of(app):
    return {
        name: one["spec"]["template"]
        for (kind, name), one in manifests_of(app).items()
        if kind == "Deployment"
    }


def command_of(container):
    """The words of a container's command, with variables as Kubernetes sets them."""
    values = {variable["name"]: variable["value"] for variable in container.get("env", ())}
    return [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["command"]]


def commands_of(app, **variables):
    services = compose_of(app, **variables)["services"]
    return {name: shlex.split(service["command"]) for name, service in services.items()}


def secrets_in(words):
    return {word.removeprefix("secrets/") for word in words if word.startswith("secrets/")}


def environment_of_image(app):
    """What the Dockerfile sets."""
    text = (app / "containers" / "Dockerfile").read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if line.startswith("ENV ")]
    return dict(word.split("=", 1) for word in shlex.split(line)[1:])


@pytest.mark.full
def test_compose_file(app):
    """It fits the published schema; each container has its volume, the secrets of its command and no others."""
    path = app / "containers" / "compose.yaml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    said = subprocess.run(check, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
    compose = compose_of(app)
    volumes = []
    for name, service in compose["services"].items():
        assert (service["restart"], service["working_dir"]) == ("unless-stopped", str(ROOT))
        targets = {one["source"]: one["target"] for one in service["secrets"]}
        assert targets == {source: str(ROOT / "secrets" / source) for source in targets}
        assert set(targets) == secrets_in(shlex.split(service["command"])), name
        volumes.append(service["volumes"][0])
    assert volumes == [f"{name}:{ROOT}" for name in compose["volumes"]]
    assert set(compose["services"]) == set(compose["volumes"])
    assert compose["secrets"] == {name: {"file": f"../{name}"} for name in compose["secrets"]}
    used = {one["source"] for service in compose["services"].values() for one in service["secrets"]}
    assert set(compose["secrets"]) == used


def test_no_service_may_do_more_than_it_needs(app):
    """It writes to its volume and to memory; it cannot become more than it is; nodes cannot reach one another, and see
    the data of their own sites alone."""
    compose = compose_of(app)
    mounts = [service["volumes"][1:] for name, service in compose["services"].items() if "node" in name]
    own = [
        [f"/data/site-{i}:/federation/data:ro"] if app.name == "tables" else [] for i in range(len(mounts))
    ]
    assert mounts == own
    for service in compose["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["tmpfs"] == ["/tmp", "/home/federation"]
        assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "user", "devices"} & set(service)
    networks = {name: set(service["networks"]) for name, service in compose["services"].items()}
    assert networks.pop("superlink") == set(compose["networks"])
    assert networks.pop("serverapp") == {"server"}
    assert networks == {name: {name} for name in networks}


VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
KINDS_OF_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


def pod_templates(value):
    """Every pod's metadata and spec in a Kubernetes object, whatever kind of object it is."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value.get("metadata", {}), value["spec"]
        for part in value.values():
            yield from pod_templates(part)
    elif isinstance(value, list):
        for part in value:
            yield from pod_templates(part)


def breaches(spec):
    """What in a pod breaks the Pod Security Standard "restricted", which includes "baseline", or our own rules.

    Ours: a root file system that cannot be written, and mounts that can on a claim or in memory alone.
    """
    found, pod = [], spec.get("securityContext", {})
    found += [name for name in ("hostNetwork", "hostPID", "hostIPC", "hostUsers") if spec.get(name)]
    kinds = {volume["name"]: set(volume) - {"name"} for volume in spec.get("volumes", ())}
    found += [f"volume {name}" for name, kind in kinds.items() if len(kind) != 1 or not kind <= VOLUMES]
    found += ["sysctls"] if pod.get("sysctls") else []
    for container in (one for kind in KINDS_OF_CONTAINERS for one in spec.get(kind, ())):
        own = container.get("securityContext", {})
        both = pod | own
        capabilities = own.get("capabilities", {})
        rules = {
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": both.get("runAsUser", 1) != 0,
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities.drop": capabilities.get("drop") == ["ALL"],
            "capabilities.add": set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
            "seccompProfile": both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "privileged": not own.get("privileged"),
            "procMount": own.get("procMount", "Default") == "Default",
            "seLinuxOptions": not both.get("seLinuxOptions"),
            "windowsOptions": not both.get("windowsOptions"),
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", ())),
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
            "mounts": all(
                mount.get("readOnly") or kinds[mount["name"]] <= {"persistentVolumeClaim", "emptyDir"}
                for mount in container.get("volumeMounts", ())
            ),
        }
        found += [name for name, holds in rules.items() if not holds]
    return found


def selects(policy, labels):
    return policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_every_pod_is_restricted(app):
    """All pods of the manifests, and of the example: the profile's rules; and a policy that denies what it omits."""
    example = Path(__file__).parents[2] / "examples" / "kubernetes.yaml"
    for path in (app / "containers" / "kubernetes.yaml", example):
        objects = list(yaml.YAML(typ="safe").load_all(path.read_text()))
        policies = [one for one in objects if one["kind"] == "NetworkPolicy"]
        pods = [pod for one in objects for pod in pod_templates(one)]
        assert len(pods) == sum(one["kind"] in ("Deployment", "Job") for one in objects) > 0
        claims = []
        for metadata, spec in pods:
            assert breaches(spec) == []
            labels = metadata.get("labels", {"job-name": "fedsolve"})  # of a job's pods, by the job
            both = [one for one in policies if selects(one, labels)]
            assert {"Ingress", "Egress"} <= {kind for one in both for kind in one["spec"]["policyTypes"]}
            volumes = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
            claims += [volume["persistentVolumeClaim"]["claimName"] for volume in volumes]
        assert len(set(claims)) == len(claims)  # one volume for each site
    for pod in pods_of(app).values():
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_nodes_reach_the_superlink_alone(app):
    """By their policies: names, and the port of the SuperLink; nothing reaches a node; the SuperLink hears its own."""
    found = manifests_of(app)
    superlink = found["Service", "superlink"]["spec"]["selector"]
    for name in pods_of(app):
        policy = found["NetworkPolicy", name]["spec"]
        assert "ingress" not in policy
        names, server = policy["egress"]
        assert {port["port"] for port in names["ports"]} == {53}
        assert server == {"to": [{"podSelector": {"matchLabels": superlink}}], "ports": [{"port": 8000}]}
    [heard] = found["NetworkPolicy", "to-superlink"]["spec"]["ingress"]
    assert heard["from"] == [{"podSelector": {"matchLabels": {"federation": superlink["federation"]}}}]


@pytest.mark.parametrize(
    ("what", "where", "value"),
    [
        ("hostNetwork", (), {"hostNetwork": True}),
        ("volume data", (), {"volumes": [{"name": "data", "hostPath": {"path": "/data"}}]}),
        ("runAsUser", ("securityContext",), {"runAsUser": 0}),
        ("runAsNonRoot", ("securityContext",), {"runAsNonRoot": False}),
        ("seccompProfile", ("securityContext",), {"seccompProfile": {"type": "Unconfined"}}),
        ("seccompProfile", ("containers", 0, "securityContext"), {"seccompProfile": {"type": "Unconfined"}}),
        (
            "allowPrivilegeEscalation",
            ("containers", 0, "securityContext"),
            {"allowPrivilegeEscalation": True},
        ),
        ("capabilities.drop", ("containers", 0, "securityContext"), {"capabilities": {"drop": ["NET_RAW"]}}),
        ("capabilities.add", ("containers", 0, "securityContext"), {"capabilities": {"add": ["SYS_ADMIN"]}}),
        ("privileged", ("containers", 0, "securityContext"), {"privileged": True}),
        ("readOnlyRootFilesystem", ("containers", 0, "securityContext"), {"readOnlyRootFilesystem": False}),
        ("hostPort", ("containers", 0), {"ports": [{"hostPort": 80}]}),
        ("runAsNonRoot", (), {"initContainers": [{"name": "new"}], "securityContext": {}}),
    ],
)
def test_a_pod_that_breaks_a_rule_is_found(what, where, value):
    safe = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    spec = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "one", "securityContext": safe}],
    }
    assert breaches(spec) == []
    part = spec
    for key in where:
        part = part[key]
    part.update(value)
    assert what in breaches(spec)


@pytest.mark.gate("tables")
def test_kubernetes_manifests(app):
    """Selectors find their pods, what is mounted is there, and commands and images are those of the compose file."""
    found = manifests_of(app)
    versions = {"Service": "v1", "PersistentVolumeClaim": "v1", "Deployment": "apps/v1"}
    versions["NetworkPolicy"] = "networking.k8s.io/v1"
    assert all(one["apiVersion"] == versions[kind] for (kind, _), one in found.items())
    pods = pods_of(app)
    service = found["Service", "superlink"]["spec"]
    assert [name for name, pod in pods.items() if pod["metadata"]["labels"] == service["selector"]] == [
        "superlink"
    ]
    compose = compose_of(app)["services"]
    assert {name: command_of(pod["spec"]["containers"][0]) for name, pod in pods.items()} == commands_of(app)
    readme = (app / "README.md").read_text()
    made = re.findall(r"create secret generic (\S+) (.*)", readme)
    files = {name: set(re.findall("--from-file=(\\S+)", line)) for name, line in made}
    for name, pod in pods.items():
        deployment, spec = found["Deployment", name], pod["spec"]
        labels = pod["metadata"]["labels"]
        assert labels == deployment["spec"]["selector"]["matchLabels"] == deployment["metadata"]["labels"]
        [container] = spec["containers"]
        assert (container["image"], container["workingDir"]) == (compose[name]["image"], str(ROOT))
        assert f"--tag {container['image']} containers" in readme
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert set(mounts) == set(volumes)
        assert (mounts["files"], mounts["secrets"]) == (str(ROOT), str(ROOT / "secrets"))
        assert ("PersistentVolumeClaim", volumes["files"]["persistentVolumeClaim"]["claimName"]) in found
        secret = volumes["secrets"]["secret"]
        assert (secret["secretName"], secret["defaultMode"]) == (name, 0o440)
        if name in files:  # the README has the lines of the server and of one node
            assert files[name] == secrets_in(container["command"])
    assert set(files) == {"superlink", "serverapp", "node-0"}


def test_the_image_has_pinned_versions(app):
    """Of Flower, the one that the persistent worker knows; and nothing reaches out."""
    text = (app / "containers" / "Dockerfile").read_text()
    assert f'"flwr=={FLOWER}"' in text
    assert FLOWER.startswith(f"{VERSION}.")
    assert f"\nflwr=={FLOWER}\n" in (Path(__file__).parents[2] / "constraints.txt").read_text()
    [wheel] = re.findall(r"COPY (\S+) /tmp/", text)
    assert f'pip install "./{wheel}[' in (app / "README.md").read_text()
    assert OFFLINE.items() <= environment_of_image(app).items()


class Became(BaseException):
    """The program that a node became."""


def flower_parsers():
    from flwr.supercore.cli import flower_superexec
    from flwr.superlink.cli import flower_superlink
    from flwr.supernode.cli import flower_supernode

    modules = {
        one: sys.modules[one.__module__] for one in (flower_superexec, flower_superlink, flower_supernode)
    }
    names = ("_parse_args", "_parse_args_run_superlink", "_parse_args_run_supernode")
    return {
        command.__name__.replace("_", "-"): getattr(module, name)()
        for (command, module), name in zip(modules.items(), names, strict=True)
    }


@pytest.mark.full_rows("tables")
def test_each_program_takes_its_command(app, monkeypatch, tmp_path):
    """Parsed by the programs themselves; a node's by `fedsolve`, and what it passes on by Flower."""
    from flwr.common.config import parse_config_args

    def become(path, words, environment):
        raise Became(words)

    monkeypatch.setattr(node.os, "execve", become)
    monkeypatch.setattr(node, "start_worker", lambda folder, environment: None)
    monkeypatch.setattr(node, "check_options", lambda words: None)  # the secrets are not here
    monkeypatch.chdir(tmp_path)
    parsers = flower_parsers()
    programs = {entry.name for entry in importlib.metadata.entry_points(group="console_scripts")}
    clients = []
    for name, words in commands_of(app).items():
        assert words[0] in programs
        if words[0] == "fedsolve":
            with pytest.raises(Became) as ended:
                main(words[1:])
            words = ended.value.args[0]
            config = parse_config_args([parsers["flower-supernode"].parse_args(words[1:]).node_config])
            assert config["state-dir"] == "states"
            wanted = "data/site-{client-id}.csv" if app.name == "tables" else None
            assert config.get("data") == (wanted and wanted.format(**config))
            assert (tmp_path / "states").is_dir()
            clients.append((name, config["client-id"]))
        taken = parsers[Path(words[0]).name].parse_args(words[1:])
        assert not getattr(taken, "insecure", False)
    assert clients == [(f"node-{i}", i) for i in range(APPS[app.name][2])]


def make_credentials(app, clients):
    """Run the README's own commands."""
    text = (app / "README.md").read_text()
    lines = re.findall(r"^    ((?:openssl|printf|chmod|ssh-keygen) (?:.*\\\n)*.*)", text, re.MULTILINE)
    keys = [line for line in lines if line.startswith("ssh-keygen")]
    assert len(keys) == 1
    lines += [keys[0].replace("node0", f"node{i}") for i in range(1, clients)]
    subprocess.run(["sh", "-e", "-c", "\n".join(lines)], cwd=app, check=True, capture_output=True)


class Containers(LocalFederation):
    """The services of a compose file as processes: each in a folder of its own, with the files of its secrets."""

    def prepare(self, app):
        self.app, self.image = app, environment_of_image(app)
        self.services: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name):
        root = self.folder / name
        variables = {
            "FEDERATION_LISTEN": HOST,
            "FEDERATION_PORT": str(self.port),
            "FEDERATION_SUPERLINK": f"{HOST}:{self.port}",
            "FEDERATION_NODE_PORT": str(free_port()),
        }
        compose = compose_of(self.app, **variables)
        service = compose["services"][name]
        for secret in service["secrets"]:
            target = root / Path(secret["target"]).relative_to(service["working_dir"])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.app / "containers" / compose["secrets"][secret["source"]]["file"], target)
        (root / "home").mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {
            "PATH": path,
            "HOME": str(root / "home"),
            **self.image,
            **service.get("environment", {}),
        }
        words = shlex.split(service["command"])
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [program(words[0]), *words[1:]], cwd=root, env=environment, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.nodes[name] = process

    def finish(self, config):
        """Start a run and wait for its end."""
        run = self.submit(self.app, config)
        end = time.monotonic() + 180
        while not self.status(run).startswith("finished"):
            assert time.monotonic() < end, self.log(run)
            time.sleep(1)

    def wait_until_ready(self):
        """Ask as the manifest's readiness probe does."""
        [container] = pods_of(self.app)["superlink"]["spec"]["containers"]
        get = container["readinessProbe"]["httpGet"]
        context = ssl.create_default_context(cafile=str(self.certificate))
        end = time.monotonic() + 60
        while True:
            try:
                address = f"{get['scheme'].lower()}://{HOST}:{self.port}{get['path']}"
                with urllib.request.urlopen(address, context=context, timeout=5) as answer:
                    assert answer.status == 200
                    return
            except urllib.error.URLError:
                assert time.monotonic() < end, self.last_words("superlink")
                time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.full
@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl, ssh-keygen"
)
def test_a_federation_of_the_commands(tmp_path):
    """SuperLink, server app's process and three nodes with TLS and keys train two rounds, then measure the model."""
    pytest.importorskip("sklearn")
    app = tmp_path / "digits"
    write_app(app, "digits", "sklearn", 3)
    make_credentials(app, 3)
    running = Containers(tmp_path / "roots", 0, insecure=False, certificate=app / "ca.crt")
    running.prepare(app)
    try:
        running.start("superlink")
        running.start("serverapp")
        running.wait_until_ready()
        for client in range(3):
            running.flwr("supernode", "register", str(app / f"node{client}.pub"), "here")
            running.start(f"node-{client}")
        running.finish({"rounds": 2, "method": "SCAFFOLD"})
        out = running.folder / "serverapp" / "run"  # as the app's configuration has it
        history = History.from_json((out / "history.json").read_text())
        assert history.rounds["round"].tolist() == [1, 2]
        assert history.total("dropped") == history.total("rejected") == 0
        assert history.final("test_accuracy") > 0.5
        clients = json.loads((out / "client-status.json").read_text())["clients"]
        assert len(clients) == 3
        for client in range(3):
            assert list(
                (running.folder / f"node-{client}" / "states").glob(f"*/client-{client}-round-2.safetensors")
            )
            assert workers_in(running.folder / f"node-{client}" / "states")
        assert (running.folder / "superlink" / "superlink.db").exists()
        running.finish({"job": "evaluate", "model": str(out), "out": "measured", "method": "SCAFFOLD"})
        [measured] = read_client_metrics(out.parent / "measured").values()
        assert (len(measured.names), measured.column("loss").max() < 2.3) == (3, True)  # log(10)
    finally:
        running.stop()
    assert all(process.poll() is not None for process in running.nodes.values())
    end = time.monotonic() + 15
    while any(workers_in(running.folder / f"node-{client}" / "states") for client in range(3)):
        assert time.monotonic() < end
        time.sleep(0.2)
