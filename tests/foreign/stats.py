"""What an existing dashboard asks, by a client of another language.

Usage: stats.py WIRE_FOLDER TARGET CA_FILE USERNAME PASSWORD_FILE
The client is compiled from the wire facts given as .proto files of their own.
Prints `ok` as its last line when everything answered as it should.
"""

import pathlib
import subprocess
import sys
import tempfile
import time


def main() -> None:
    wire, target, ca, username, password_file = sys.argv[1:]
    with tempfile.TemporaryDirectory() as generated:
        files = sorted(str(path) for path in pathlib.Path(wire).glob("*.proto"))
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{wire}",
             f"--python_out={generated}", f"--grpc_python_out={generated}", *files],
            check=True,
        )
        sys.path.insert(0, generated)
        import grpc
        import services_auth_pb2 as auth_pb
        import services_auth_pb2_grpc as auth_rpc
        import stats_pb2 as pb
        import stats_pb2_grpc as rpc

        credentials = grpc.ssl_channel_credentials(pathlib.Path(ca).read_bytes())
        channel = grpc.secure_channel(target, credentials)
        auth = auth_rpc.AuthServiceStub(channel)
        password = pathlib.Path(password_file).read_text().strip()
        login = auth.Login(auth_pb.LoginRequest(username=username, password=password), timeout=30)
        assert login.token and login.account_id and login.expires.timestamp.seconds > time.time(), login
        metadata = [("authorization", f"Bearer {login.token}")]
        assert auth.CheckToken(auth_pb.CheckTokenRequest(token=login.token), timeout=30).success
        ask(grpc, pb, rpc.StatsServiceStub(channel), metadata)
        assert auth.Logout(auth_pb.LogoutRequest(), metadata=metadata, timeout=30).success
        assert not auth.CheckToken(auth_pb.CheckTokenRequest(token=login.token), timeout=30).success
    print("ok")


def ask(grpc, pb, stats, metadata) -> None:
    def call(method, request):
        return eventually(grpc, lambda: method(request, metadata=metadata, timeout=30))

    try:
        stats.GetClusterStats(pb.GetClusterStatsRequest(), timeout=30)
        raise AssertionError("answered without a token")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error

    found = call(stats.GetClusterStats, pb.GetClusterStatsRequest()).stats
    assert len(found.id) == 36 and found.status.startswith("HEALTH_"), found
    assert found.data.usage.total > 0 and found.data.pools.pools > 0, found
    assert found.io.client_read.endswith("/s rd") and found.io.client_write_ops.endswith("ops/s wr"), found

    def ready():
        nodes = call(stats.GetClusterNodes, pb.GetClusterNodesRequest()).nodes
        return [node.name for node in nodes if node.status == 1]

    until(ready)
    call(stats.GetClusterResources, pb.GetClusterResourcesRequest())
    radar = call(stats.GetClusterRadar, pb.GetClusterRadarRequest()).radar
    marks = [radar.cluster_health, radar.nodes_health, radar.capacity_used, radar.stability, radar.reliability]
    assert all(0 <= mark <= 100 for mark in marks) and radar.nodes_health == 100, radar


def eventually(grpc, once):
    """The first answers come when the sources have answered."""
    end = time.monotonic() + 60
    while True:
        try:
            return once()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                raise
            time.sleep(0.1)


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "gave up waiting"
        time.sleep(0.1)


main()
