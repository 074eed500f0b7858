"""compose.yaml and the Kubernetes manifests: by their schemas, and by what they say of each other."""
import json
import os
import re
import subprocess

import pytest

import tree

DEPLOY = os.path.join(tree.ROOT, "deploy")
KUBERNETES = os.path.join(DEPLOY, "kubernetes")
DRAIN_S = 30  # --drain-ms' default
MANIFESTS = sorted(n for n in os.listdir(KUBERNETES) if n.endswith(".yaml") and n != "kustomization.yaml")


@pytest.fixture(scope="module")
def python():
    found = tree.venv("kubernetes-validate==1.37.0", "compose-spec==0.2.1", "PyYAML==6.0.4")
    if not found:
        pytest.skip("the schemas' packages cannot be had from PyPI here")
    return found


def load(python, path):
    """Every document of a YAML file."""
    out = subprocess.run([python, "-c", "import json,sys,yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))", path],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)


@pytest.fixture(scope="module")
def objects(python):
    return [d for name in MANIFESTS for d in load(python, os.path.join(KUBERNETES, name))]


def validate(python, path):
    return subprocess.run([os.path.join(os.path.dirname(python), "kubernetes-validate"), "--strict", path], capture_output=True, text=True,
                          check=False)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_fits_the_schema(python, name):
    done = validate(python, os.path.join(KUBERNETES, name))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("good,bad", [("readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"), ("replicas: 1", "replicas: one"),
                                      ("httpGet:", "httpget:")])
def test_schema_refuses_what_is_wrong(python, tmp_path, good, bad):
    with open(os.path.join(KUBERNETES, "routers.yaml"), encoding="utf-8") as f:
        text = f.read()
    assert good in text
    (tmp_path / "bad.yaml").write_text(text.replace(good, bad))
    assert validate(python, str(tmp_path / "bad.yaml")).returncode != 0


def test_kustomization_names_every_file(python):
    k, = load(python, os.path.join(KUBERNETES, "kustomization.yaml"))
    assert sorted(k["resources"]) == MANIFESTS
    with open(os.path.join(tree.ROOT, "VERSION"), encoding="utf-8") as f:
        assert k["images"][0]["newTag"] == f.read().strip()


def of(objects, *kinds):
    return [o for o in objects if o["kind"] in kinds]


def pods(objects):
    """(name, labels, pod spec, its one container) of all that makes pods."""
    out = []
    for o in of(objects, "Deployment", "StatefulSet"):
        template = o["spec"]["template"]
        container, = template["spec"]["containers"]
        assert o["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        out.append((o["metadata"]["name"], template["metadata"]["labels"], template["spec"], container))
    return out


def test_pods_are_confined(objects):
    for name, _, spec, c in pods(objects):
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        assert spec["automountServiceAccountToken"] is False, name
        s = c["securityContext"]
        assert s["readOnlyRootFilesystem"] and not s["allowPrivilegeEscalation"] and s["capabilities"]["drop"] == ["ALL"], name
        assert c["resources"]["requests"] and c["resources"]["limits"]["memory"], name


def test_pods_have_the_time_to_drain(objects):
    for name, _, spec, c in pods(objects):
        pause = c.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert spec["terminationGracePeriodSeconds"] >= DRAIN_S + pause + 5, name


def test_keys_are_files(objects):
    """From a secret's volume; no environment variable and no argument carries one."""
    for name, _, spec, c in pods(objects):
        assert not [e for e in c.get("env", []) if "secretKeyRef" in e.get("valueFrom", {})], name
        mounts = {m["name"]: m["mountPath"] for m in c["volumeMounts"]}
        secret = {v["name"] for v in spec["volumes"] if "secret" in v}
        assert secret == {"keys", "tls"}, name
        files = [a.split("=", 1)[1] for a in c["args"] if re.match(r"--(grid-key-file|api-key-file|tls-\w+)=", a)]
        assert files and all(any(f.startswith(mounts[s] + "/") for s in secret) for f in files), name
        assert all(v["secret"]["defaultMode"] == 0o440 for v in spec["volumes"] if "secret" in v), name


def test_readiness_is_coverage_and_liveness_is_not(objects):
    for name, _, _, c in pods(objects):
        ready = c["readinessProbe"]["httpGet"]
        assert ready["path"] == ("/v1/health?coverage=full" if "router" in name else "/v1/health"), name
        alive = c["livenessProbe"]["httpGet"]  # a gap in the grid is no reason to restart a router
        assert alive["path"] == ("/v1/health?coverage=none" if "router" in name else "/v1/health") and alive["scheme"] == "HTTPS", name
        assert ready["port"] in {p["name"] for p in c["ports"]} and ready["scheme"] == "HTTPS"


def test_services_find_pods_and_ports(objects):
    for s in of(objects, "Service"):
        found = [c for _, labels, _, c in pods(objects) if s["spec"]["selector"].items() <= labels.items()]
        assert found, s["metadata"]["name"]
        for p in s["spec"]["ports"]:
            assert all(p["targetPort"] in {q["name"] for q in c["ports"]} for c in found), s["metadata"]["name"]


def test_every_pod_has_a_budget(objects):
    budgets = [b["spec"]["selector"]["matchLabels"] for b in of(objects, "PodDisruptionBudget")]
    for name, labels, _, _ in pods(objects):
        assert len([b for b in budgets if b.items() <= labels.items()]) == 1, name


def test_shards_join_every_router_by_a_name_that_exists(objects):
    grids = {f"{s['metadata']['name']}:{p['port']}" for s in of(objects, "Service") for p in s["spec"]["ports"] if p["name"] == "grid"}
    assert all(s["spec"]["publishNotReadyAddresses"] for s in of(objects, "Service") if s["spec"]["ports"][0]["name"] == "grid")
    headless = next(s for s in of(objects, "Service") if s["spec"].get("clusterIP") == "None")
    ranges = []
    for name, _, _, c in pods(objects):
        args = dict(a.lstrip("-").split("=", 1) for a in c["args"] if a.startswith("--") and "=" in a)
        if "router" in name:
            continue
        assert set(args["join"].split(",")) == grids, name
        assert args["public-url"] == f"https://$(POD_NAME).{headless['metadata']['name']}.$(POD_NAMESPACE).svc:8080"
        assert {"POD_NAME", "POD_NAMESPACE"} <= {e["name"] for e in c["env"]}
        ranges.append(tuple(int(x) for x in args["layers"].split("-")))
    ranges.sort()
    assert ranges[0][0] == 0 and all(b[0] == a[1] + 1 for a, b in zip(ranges, ranges[1:])), ranges


def test_network_lets_through_what_the_grid_needs(objects):
    """Router to shard, shard to router's grid port, shard to shard: out at one side and in at the other."""
    router, shard = ({"app.kubernetes.io/name": f"larql-{n}"} for n in ("router", "shard"))
    policy = {json.dumps(p["spec"]["podSelector"].get("matchLabels", {})): p["spec"] for p in of(objects, "NetworkPolicy") if p["metadata"]["name"] != "names"}

    def allows(who, way, peer, port):
        end = {"ingress": "from", "egress": "to"}[way]
        return any(port in {p["port"] for p in rule["ports"]} and any(x.get("podSelector", {}).get("matchLabels") == peer and
                                                                      "namespaceSelector" not in x for x in rule.get(end, []))
                   for rule in policy[json.dumps(who)][way])

    for a, b, port in ((router, shard, 8080), (shard, router, 50052), (shard, shard, 8080)):
        assert allows(a, "egress", b, port) and allows(b, "ingress", a, port), (a, b, port)
    assert set(policy["{}"]["policyTypes"]) == {"Ingress", "Egress"} and "ingress" not in policy["{}"]


@pytest.mark.parametrize("program", ["larql-router", "larql-shard"])
def test_options_exist(python, objects, program):
    words = [a for _, _, _, c in pods(objects) if c["command"] == [program] for a in c["args"]]
    compose, = load(python, os.path.join(DEPLOY, "compose.yaml"))
    words += [a for s in compose["services"].values() if s["command"][0] == program for a in s["command"]]
    assert words
    tree.check_options(program, " ".join(words))


def compose_check(python, path):
    return subprocess.run([python, os.path.join(tree.HERE, "compose_check.py"), path], capture_output=True, text=True, check=False)


def test_compose_file_fits_the_specification(python, tmp_path):
    path = os.path.join(DEPLOY, "compose.yaml")
    done = compose_check(python, path)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(path, encoding="utf-8") as f:
        text = f.read()
    for good, bad in (("read_only:", "readonly:"), ("[grid.key, api.keys]", "[grid.key, api.key]"), ("40s", "forty")):
        assert good in text
        (tmp_path / "bad.yaml").write_text(text.replace(good, bad))
        assert compose_check(python, str(tmp_path / "bad.yaml")).returncode == 1, bad


def test_compose_publishes_on_loopback_and_keeps_keys_in_files(python):
    compose, = load(python, os.path.join(DEPLOY, "compose.yaml"))
    for name, s in compose["services"].items():
        assert all(p.startswith("127.0.0.1:") for p in s.get("ports", [])), name
        assert int(s["stop_grace_period"].rstrip("s")) > DRAIN_S and s["cap_drop"] == ["ALL"] and s["read_only"], name
        assert not [k for k in s.get("environment", {}) if "KEY" in k], name
        assert f"/run/secrets/{s['secrets'][0]}" in " ".join(s["command"]), name
