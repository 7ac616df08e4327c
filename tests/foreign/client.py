"""A client in another language, made from the .proto files alone.

Usage: client.py PROTO_DIR TARGET CA_FILE|- USERNAME PASSWORD_FILE
Prints `ok` as its last line when everything answered as it should.
"""

import pathlib
import subprocess
import sys
import tempfile


def main() -> None:
    protos, target, ca, username, password_file = sys.argv[1:]
    generated = compile_all(pathlib.Path(protos))
    sys.path.insert(0, generated)

    import grpc
    from services.auth import auth_pb2, auth_pb2_grpc
    from edgeproto import flavor_pb2, flavor_pb2_grpc, notice_pb2, notice_pb2_grpc
    from cnct.kaas.api import api_pb2, api_pb2_grpc
    from selvage.identity import identity_pb2, identity_pb2_grpc

    credentials = grpc.ssl_channel_credentials(pathlib.Path(ca).read_bytes())
    channel = grpc.secure_channel(target, credentials)
    auth = auth_pb2_grpc.AuthServiceStub(channel)

    password = pathlib.Path(password_file).read_text().strip()
    reply = auth.Login(auth_pb2.LoginRequest(username=username, password=password), timeout=30)
    assert reply.token and reply.account_id and reply.expires.timestamp.seconds > 0, reply
    metadata = [("authorization", f"Bearer {reply.token}")]

    who = identity_pb2_grpc.IdentityServiceStub(channel).WhoAmI(
        identity_pb2.WhoAmIRequest(), metadata=metadata, timeout=30
    )
    assert who.name == username, who

    refused = status_of(lambda: auth.Login(auth_pb2.LoginRequest(username=username, password="wrong")))
    assert refused == grpc.StatusCode.UNAUTHENTICATED, refused

    flavor = flavor_pb2.Flavor(key=flavor_pb2.FlavorKey(name="x1.small"), ram=1, vcpus=1, disk=1)
    stub = flavor_pb2_grpc.FlavorApiStub(channel)
    assert status_of(lambda: stub.CreateFlavor(flavor)) == grpc.StatusCode.UNAUTHENTICATED
    stub.CreateFlavor(flavor, metadata=metadata, timeout=30)
    assert status_of(lambda: stub.CreateFlavor(flavor, metadata=metadata)) == grpc.StatusCode.ALREADY_EXISTS
    # A stream of replies.
    shown = list(stub.ShowFlavor(flavor_pb2.Flavor(), metadata=metadata, timeout=30))
    assert shown == [flavor], shown
    # Streams both ways: the first notice has to name a version.
    notify = notice_pb2_grpc.NotifyApiStub(channel)
    hello = notice_pb2.Notice(action=notice_pb2.VERSION, version=1, want_objs=["edgeproto.Flavor"])
    notices = notify.StreamNotice(open_ended([hello]), metadata=metadata, timeout=30)
    assert next(notices).action == notice_pb2.VERSION
    update = next(notices)
    assert update.any.type_url.endswith("/edgeproto.Flavor"), update
    assert next(notices).action == notice_pb2.SENDALL_END
    notices.cancel()

    kaas = api_pb2_grpc.ClusterStub(channel)
    version = kaas.GetVersionInformation(api_pb2.GetVersionMsg(), metadata=metadata, timeout=30)
    assert version.ok and version.version_information.git_version, version

    assert auth.CheckToken(auth_pb2.CheckTokenRequest(token=reply.token)).success
    assert auth.Logout(auth_pb2.LogoutRequest(), metadata=metadata).success
    assert not auth.CheckToken(auth_pb2.CheckTokenRequest(token=reply.token)).success
    print("ok")


def open_ended(notices):
    """Sends these and then keeps the stream open."""
    import threading

    yield from notices
    threading.Event().wait(60)


def compile_all(protos: pathlib.Path) -> str:
    """Compiles every contract with the stock compiler; none may fail."""
    out = tempfile.mkdtemp(prefix="selvage-foreign-")
    files = [str(path.relative_to(protos)) for path in sorted(protos.rglob("*.proto"))]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--python_out={out}", f"--grpc_python_out={out}", *files],
        check=True,
    )
    return out


def status_of(call):
    import grpc

    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


main()
