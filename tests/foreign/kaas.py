"""Clusters, as a client of the original asks for them: gRPC without TLS and
without credentials, and REST on the same port.

Usage: kaas.py WIRE_PROTO TARGET compat=|compat=ims-kaas
The client is compiled from the wire facts given as a .proto file of their own.
Prints `ok` as its last line when everything answered as it should.
"""

import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

CLUSTERS = "CnctCluster.cluster.cnct.sds.samsung.com"
# Read from a cache, which names kinds, and written by the API, which names resources.
MACHINE_SET = "CnctMachineSet.cluster.cnct.sds.samsung.com"
MACHINE_SETS = "cnctmachinesets.cluster.cnct.sds.samsung.com"


def main() -> None:
    wire, target, compat = sys.argv[1:]
    with tempfile.TemporaryDirectory() as generated:
        folder = str(pathlib.Path(wire).parent)
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}",
             f"--python_out={generated}", f"--grpc_python_out={generated}", wire],
            check=True,
        )
        sys.path.insert(0, generated)
        import grpc
        import kaas_wire_pb2 as pb
        import kaas_wire_pb2_grpc as rpc

        channel = grpc.insecure_channel(target)
        replay = Replay(grpc, pb, rpc.ClusterStub(channel), Rest(target), compat == "compat=ims-kaas")
        replay.nothing()
        replay.life()
        replay.wrong()
        replay.routes()
    print("ok")


class Rest:
    def __init__(self, target):
        self.target = target

    def send(self, verb, path, body=None, headers=None):
        """Status, body and headers of the answer."""
        connection = http.client.HTTPConnection(self.target, timeout=60)
        text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
        connection.request(verb, path, body=text, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers

    def json(self, verb, path, body=None):
        status, text, _ = self.send(verb, f"/api/v1{path}", body)
        assert status == 200, (verb, path, status, text)
        return json.loads(text)

    def refused(self, verb, path, body=None):
        """Status of HTTP, number of the code, and text, which is there twice."""
        status, text, headers = self.send(verb, f"/api/v1{path}", body)
        assert headers["content-type"] == "application/json", headers
        answer = json.loads(text)
        assert answer["error"] == answer["message"], answer
        return status, answer["code"], answer["error"]


class Replay:
    def __init__(self, grpc, pb, api, rest, compat):
        self.grpc, self.pb, self.api, self.rest, self.compat = grpc, pb, api, rest, compat

    def refused(self, method, message):
        """Name of the code and text with which a call is refused."""
        try:
            reply = getattr(self.api, method)(message, timeout=60)
        except self.grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{method} {message} was not refused: {reply}")

    def until(self, what, look):
        for _ in range(600):
            if look():
                return
            time.sleep(0.1)
        raise AssertionError(what)

    def until_running(self, name):
        get = lambda: self.api.GetCluster(self.pb.GetClusterMsg(name=name), timeout=60)
        self.until("RUNNING", lambda: get().cluster.status == self.pb.RUNNING)
        return get().cluster

    def nothing(self):
        """Answers while there is no cluster."""
        pb, api = self.pb, self.api
        listed = api.GetClusterList(pb.GetClusterListMsg(), timeout=60)
        assert listed == pb.GetClusterListReply(ok=True), listed
        assert self.rest.send("GET", "/api/v1/cluster/list")[:2] == (200, '{"ok":true}')
        version = api.GetVersionInformation(pb.GetVersionMsg(), timeout=60)
        told = version.version_information
        assert version.ok and told.git_version and told.platform and told.go_version, version
        self.source(told)
        self.missing("c1")

    def source(self, told):
        """The program says of what it was built, as far as git knows."""
        root = pathlib.Path(__file__).parents[2]
        git = subprocess.run(["git", "rev-parse", "--show-toplevel"], cwd=root, capture_output=True, text=True)
        if git.returncode != 0 or pathlib.Path(git.stdout.strip()).resolve() != root.resolve():
            assert told.git_tree_state in ("unknown", "archive"), told
            return
        assert re.fullmatch("[0-9a-f]{40}", told.git_commit), told
        assert told.git_tree_state in ("clean", "dirty"), told
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told.build_date), told

    def missing(self, name):
        """All that names a cluster which is not there."""
        pb = self.pb
        pool = pb.MachineSpec(name="a", count=1)
        text = f'{CLUSTERS} "{name}" not found' if self.compat else f'cluster "{name}" not found'
        for method, message in [
            ("GetCluster", pb.GetClusterMsg(name=name)),
            ("DeleteCluster", pb.DeleteClusterMsg(name=name)),
            ("GetClusterNodesStatus", pb.GetClusterNodesStatusMsg(clusterName=name)),
            ("AddNodePool", pb.AddNodePoolMsg(clusterName=name, worker_node_pools=[pool])),
            ("DeleteNodePool", pb.DeleteNodePoolMsg(clusterName=name, node_pool_names=["a"])),
            ("ScaleNodePool", pb.ScaleNodePoolMsg(clusterName=name, node_pools=[pb.ScaleNodePoolSpec(name="a", count=2)])),
            ("UpgradeCluster", pb.UpgradeClusterMsg(name=name, version="1.36.4")),
        ]:
            assert self.refused(method, message) == ("NOT_FOUND", text), (method, self.refused(method, message))
        assert self.rest.refused("GET", f"/cluster?name={name}") == (404, 5, text)
        assert self.rest.refused("DELETE", f"/cluster?name={name}") == (404, 5, text)

    def life(self):
        """A cluster is made, used and deleted."""
        pb, api = self.pb, self.api
        asked = pb.CreateClusterMsg(
            name="c1", k8s_version="1.35.8",
            control_plane_nodes=pb.ControlPlaneMachineSpec(instanceType="standard", count=3),
            worker_node_pools=[pb.MachineSpec(
                name="pool", count=1, labels=[pb.KubernetesLabel(name="tier", value="front")])],
        )
        made = api.CreateCluster(asked, timeout=60)
        assert made.ok and made.cluster.name == "c1" and made.cluster.status == pb.PROVISIONING, made
        taken = ("INTERNAL", 'namespaces "c1" already exists') if self.compat else (
            "ALREADY_EXISTS", 'cluster "c1" already exists')
        assert self.refused("CreateCluster", asked) == taken, self.refused("CreateCluster", asked)
        cluster = self.until_running("c1")
        assert cluster.name == "c1" and "client-certificate-data" in cluster.kubeconfig, cluster
        listed = api.GetClusterList(pb.GetClusterListMsg(), timeout=60)
        assert [(c.name, c.status) for c in listed.clusters] == [("c1", pb.RUNNING)], listed
        # The original made one machine of three that were asked for.
        self.nodes(4, "1.35.8")
        self.pools()
        self.upgrade()
        deleted = api.DeleteCluster(pb.DeleteClusterMsg(name="c1"), timeout=60)
        assert deleted.ok and deleted.status == ("Deleted" if self.compat else "Deleting"), deleted
        gone = pb.GetClusterMsg(name="c1")
        self.until("gone", lambda: self.is_gone(gone))
        self.missing("c1")

    def is_gone(self, message):
        try:
            cluster = self.api.GetCluster(message, timeout=60).cluster
        except self.grpc.RpcError as error:
            return error.code() == self.grpc.StatusCode.NOT_FOUND
        # Shown until its last machine is back.
        assert cluster.status == self.pb.STOPPING, cluster
        return False

    def nodes(self, count, version):
        nodes = self.api.GetClusterNodesStatus(self.pb.GetClusterNodesStatusMsg(clusterName="c1"), timeout=60)
        ready = "ReadyMachine" if self.compat else "Ready"
        assert nodes.Name == "c1" and nodes.count == count == len(nodes.machines), nodes
        for machine in nodes.machines:
            assert (machine.k8sNodeStatus, machine.k8sVersion) == (ready, version), machine
            assert machine.maasSystemId and machine.maasHostname and machine.maasIPAddr, machine

    def pools(self):
        pb, api = self.pb, self.api
        more = pb.AddNodePoolMsg(clusterName="c1", worker_node_pools=[pb.MachineSpec(name="gpu", count=1)])
        assert api.AddNodePool(more, timeout=60) == pb.AddNodePoolReply(ok=True)
        twice = self.refused("AddNodePool", more)
        assert twice == (("INTERNAL", f'{MACHINE_SETS} "gpu" already exists') if self.compat else (
            "ALREADY_EXISTS", 'cluster "c1" already has a pool "gpu"')), twice
        size = lambda name, count: pb.ScaleNodePoolMsg(
            clusterName="c1", node_pools=[pb.ScaleNodePoolSpec(name=name, count=count)])
        assert api.ScaleNodePool(size("pool", 2), timeout=60) == pb.ScaleNodePoolReply(ok=True)
        assert api.ScaleNodePool(size("pool", 2), timeout=60).ok, "to the same size"
        # The original took this, and did nothing any more for any cluster.
        code, text = self.refused("ScaleNodePool", size("pool", -5))
        assert code == ("INTERNAL" if self.compat else "INVALID_ARGUMENT"), code
        assert text.startswith("node_pools[0].count: "), text
        unknown = ("NOT_FOUND", f'{MACHINE_SET} "nope" not found' if self.compat
                   else 'cluster "c1" has no pool "nope"')
        assert self.refused("ScaleNodePool", size("nope", 1)) == unknown, self.refused("ScaleNodePool", size("nope", 1))
        names = pb.DeleteNodePoolMsg(clusterName="c1", node_pool_names=["gpu", "nope"])
        assert self.refused("DeleteNodePool", names) == unknown, self.refused("DeleteNodePool", names)
        self.until_running("c1")
        self.nodes(6, "1.35.8")
        names = pb.DeleteNodePoolMsg(clusterName="c1", node_pool_names=["gpu"])
        assert api.DeleteNodePool(names, timeout=60) == pb.DeleteNodePoolReply(ok=True)
        count = lambda: api.GetClusterNodesStatus(pb.GetClusterNodesStatusMsg(clusterName="c1"), timeout=60).count
        self.until("five machines", lambda: count() == 5)
        self.until_running("c1")

    def upgrade(self):
        pb, api = self.pb, self.api
        reachable = api.GetUpgradeClusterInformation(pb.GetUpgradeClusterInformationMsg(name="c1"), timeout=60)
        # The original never says that this went well.
        assert reachable == pb.GetUpgradeClusterInformationReply(ok=not self.compat, versions=["1.36.4"]), reachable
        for version in ["9.9.9", "1.37.1", "1.34.1", ""]:
            code, text = self.refused("UpgradeCluster", pb.UpgradeClusterMsg(name="c1", version=version))
            wanted = {"INTERNAL"} if self.compat else {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}
            assert code in wanted and text, (version, code, text)
        assert api.UpgradeCluster(pb.UpgradeClusterMsg(name="c1", version="1.36.4"), timeout=60).ok
        self.until_running("c1")
        self.nodes(5, "1.36.4")
        assert api.UpgradeCluster(pb.UpgradeClusterMsg(name="c1", version="1.36.4"), timeout=60).ok, "to the same"

    def wrong(self):
        """What the original died of, or took and could not do."""
        pb, api = self.pb, self.api
        assert api.CreateCluster(pb.CreateClusterMsg(name="bare"), timeout=60).ok, "without a control plane"
        self.until_running("bare")
        assert api.DeleteCluster(pb.DeleteClusterMsg(name="bare"), timeout=60).ok
        refusal = "INTERNAL" if self.compat else "INVALID_ARGUMENT"
        pool = lambda count: [pb.MachineSpec(name="pool", count=count)]
        for fields, message in [
            (["name"], pb.CreateClusterMsg()),
            (["name"], pb.CreateClusterMsg(name="UPPER")),
            (["k8s_version"], pb.CreateClusterMsg(name="c2", k8s_version="9.9.9")),
            (["control_plane_nodes.count", "worker_node_pools[0].count"],
             pb.CreateClusterMsg(name="c2", worker_node_pools=pool(-1),
                                 control_plane_nodes=pb.ControlPlaneMachineSpec(count=2))),
        ]:
            code, text = self.refused("CreateCluster", message)
            assert code == refusal and all(f"{field}: " in text for field in fields), (code, text)
        self.missing("c2")

    def routes(self):
        """The same by REST: names of fields, and what is left out."""
        rest = self.rest
        body = {"name": "r1", "k8sVersion": "1.35.8", "unknown": 1, "control_plane_nodes": {"count": 1},
                "worker_node_pools": [{"name": "pool", "count": 1}]}
        made = rest.json("POST", "/cluster", body)
        assert made["ok"] is True and made["cluster"]["status"] == "PROVISIONING", made
        get = lambda: rest.json("GET", "/cluster?name=r1&unknown=1")["cluster"]
        self.until("RUNNING", lambda: get()["status"] == "RUNNING")
        assert set(get()) == {"name", "status", "kubeconfig"} | ({"status_message"} & set(get())), get()
        nodes = rest.json("GET", "/cluster/nodesstatus?clusterName=r1")
        assert nodes["Name"] == "r1" and nodes["count"] == 2, nodes
        assert {"k8sNodeStatus", "k8sVersion", "maasSystemId", "maasIPAddr"} <= set(nodes["machines"][0]), nodes
        assert rest.json("POST", "/cluster/pool", {"clusterName": "r1", "worker_node_pools": [
            {"name": "a", "count": 0}, {"name": "b", "count": 0}]}) == {"ok": True}
        assert rest.json("PUT", "/cluster/pool", {"clusterName": "r1", "node_pools": []}) == {"ok": True}
        assert rest.json("DELETE", "/cluster/pool?clusterName=r1&node_pool_names=a&node_pool_names=b") == {"ok": True}
        self.until("RUNNING", lambda: get()["status"] == "RUNNING")
        upgrades = rest.json("GET", "/cluster/upgrade?name=r1")
        assert upgrades == {"versions": ["1.36.4"]} | ({} if self.compat else {"ok": True}), upgrades
        assert rest.json("PUT", "/cluster/upgrade", {"name": "r1", "version": "1.36.4"}) == {"ok": True}
        self.until("RUNNING", lambda: get()["status"] == "RUNNING")
        taken = (500, 13, 'namespaces "r1" already exists') if self.compat else (
            409, 6, 'cluster "r1" already exists')
        assert rest.refused("POST", "/cluster", body) == taken, rest.refused("POST", "/cluster", body)
        status, code, _ = rest.refused("POST", "/cluster", "{malformed")
        assert (status, code) == (400, 3), (status, code)
        assert rest.json("GET", "/version")["version_information"]["git_version"]
        assert rest.send("GET", "/api/v1/nothing")[:2] == (404, "Not Found\n"), rest.send("GET", "/api/v1/nothing")
        assert rest.send("PUT", "/api/v1/cluster", "{}")[0] == 405, rest.send("PUT", "/api/v1/cluster", "{}")
        deleted = rest.json("DELETE", "/cluster?name=r1")
        assert deleted == {"ok": True, "status": "Deleted" if self.compat else "Deleting"}, deleted
        # As the original's own script waits: until the word is gone.
        self.until("gone", lambda: "STOPPING" not in rest.send("GET", "/api/v1/cluster?name=r1")[1])


if __name__ == "__main__":
    main()
