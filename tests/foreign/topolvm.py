"""The calls of TopoLVM's node plugin, in its order, over lvmd's socket.

Usage: topolvm.py WIRE_PROTO SOCKET DEVICE_CLASS
The client is compiled from the wire facts given as a .proto file of their own.
Prints `ok` as its last line when everything answered as it should.
"""

import os
import pathlib
import queue
import stat
import subprocess
import sys
import tempfile
import threading


def main() -> None:
    wire, socket, device_class = sys.argv[1:]
    generated = tempfile.mkdtemp()
    folder = str(pathlib.Path(wire).parent)
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}",
         f"--python_out={generated}", f"--grpc_python_out={generated}", wire],
        check=True,
    )
    sys.path.insert(0, generated)
    import grpc
    import lvmd_wire_pb2 as pb
    import lvmd_wire_pb2_grpc as rpc

    # gRPC libraries send the path of the socket as the authority, percent
    # encoded or not: both have to be understood.
    channel = grpc.insecure_channel(f"unix:{socket}")
    vg, lv = rpc.VGServiceStub(channel), rpc.LVServiceStub(channel)

    # Whoever looks after the daemon asks this first. 1 means that it serves.
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    for service in (b"", b"\x0a\x0fproto.LVService", b"\x0a\x0fproto.VGService"):
        assert check(service, timeout=30) == b"\x08\x01", service

    # The node watches capacity for as long as it lives.
    capacities: queue.Queue = queue.Queue()
    watching = vg.Watch(pb.Empty())

    def follow() -> None:
        try:
            for capacity in watching:
                capacities.put(capacity)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED, error

    follower = threading.Thread(target=follow)
    follower.start()
    first = capacities.get(timeout=30)
    free = {item.device_class: item.free_bytes for item in first.items}
    assert free[device_class] == first.free_bytes, first
    plain = vg.GetFreeBytes(pb.GetFreeBytesRequest(device_class=device_class), timeout=30)
    assert plain.free_bytes == first.free_bytes, plain

    # A LogicalVolume appears: look for one of that name, make it if there is none.
    name = "0d4c8e8e-6d2f-4a3a-9d8e-3f1b5a0c7e21"
    assert find(vg, pb, name, device_class) is None
    made = lv.CreateLV(
        pb.CreateLVRequest(name=name, size_gb=1, tags=["k=v", "a"], device_class=device_class),
        timeout=60,
    ).volume
    assert (made.name, made.size_gb) == (name, 1), made
    assert list(made.tags) == [], made
    told = capacities.get(timeout=30)
    assert told.free_bytes == first.free_bytes - (1 << 30), told

    # The volume is published: it is found again and a node is made for it.
    found = find(vg, pb, name, device_class)
    assert (found.dev_major, found.dev_minor) == (made.dev_major, made.dev_minor), found
    assert list(found.tags) == ["a", "k=v"] and found.size_gb == 1, found
    node = os.path.join(tempfile.mkdtemp(), name)
    os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(made.dev_major, made.dev_minor))
    with open(node, "r+b", buffering=0) as device:
        assert device.seek(0, os.SEEK_END) == 1 << 30
        device.seek(4096)
        device.write(b"x" * 4096)
        # In use under a name that only we know.
        refused = status_of(lambda: lv.RemoveLV(pb.RemoveLVRequest(name=name, device_class=device_class)))
        assert refused[0] == grpc.StatusCode.FAILED_PRECONDITION, refused

    # It is expanded, and the device with it.
    lv.ResizeLV(pb.ResizeLVRequest(name=name, size_gb=2, device_class=device_class), timeout=60)
    assert capacities.get(timeout=30).free_bytes == first.free_bytes - (2 << 30)
    with open(node, "rb", buffering=0) as device:
        assert device.seek(0, os.SEEK_END) == 2 << 30
        device.seek(4096)
        assert device.read(4096) == b"x" * 4096
    os.unlink(node)

    refusals(lv, pb, grpc, name, device_class)

    # It is deleted, and deleted again by a retry.
    lv.RemoveLV(pb.RemoveLVRequest(name=name, device_class=device_class), timeout=60)
    assert capacities.get(timeout=30).free_bytes == first.free_bytes
    lv.RemoveLV(pb.RemoveLVRequest(name=name, device_class=device_class), timeout=60)
    assert find(vg, pb, name, device_class) is None
    assert capacities.empty(), "nothing happened, nothing is told"
    watching.cancel()
    follower.join(30)
    print("ok")


def refusals(lv, pb, grpc, name: str, device_class: str) -> None:
    code = grpc.StatusCode
    create = lambda **fields: status_of(lambda: lv.CreateLV(pb.CreateLVRequest(**fields), timeout=60))
    assert create(name="a", size_gb=1, device_class="nope") == (code.NOT_FOUND, "device-class not found: nope")
    refused = create(name="a", size_gb=1 << 20, device_class=device_class)
    assert refused[0] == code.RESOURCE_EXHAUSTED, refused
    assert refused[1].startswith("no enough space left on VG: free="), refused
    assert refused[1].endswith(f", requested={1 << 50}"), refused
    assert create(name="a", size_gb=1 << 34, device_class=device_class)[0] == code.INVALID_ARGUMENT
    assert create(name="a", size_gb=0, device_class=device_class)[0] == code.INVALID_ARGUMENT
    assert create(name=name, size_gb=1, device_class=device_class)[0] == code.ALREADY_EXISTS
    resize = lambda **fields: status_of(lambda: lv.ResizeLV(pb.ResizeLVRequest(**fields), timeout=60))
    told = resize(name=name, size_gb=1, device_class=device_class)
    assert told == (code.OUT_OF_RANGE, "shrinking volume size is not allowed"), told
    told = resize(name="nope", size_gb=1, device_class=device_class)
    assert told == (code.NOT_FOUND, "logical volume nope is not found"), told
    # A backup that is not there is told in the state, never as an error.
    for request in (pb.CreateBackupRequest(), pb.CreateBackupRequest(backup=pb.Backup(name="b", volume_handle=name))):
        state = lv.CreateBackup(request, timeout=60).backup_state
        assert state.state == pb.ERROR and state.msg, state


def find(vg, pb, name: str, device_class: str):
    volumes = vg.GetLVList(pb.GetLVListRequest(device_class=device_class), timeout=30).volumes
    return next((volume for volume in volumes if volume.name == name), None)


def status_of(call):
    import grpc

    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("it was not refused")


main()
