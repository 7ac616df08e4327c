"""What a device asks, by a client of another language.

Usage: dme.py WIRE_PROTO TARGET CA_FILE
The client is compiled from the wire facts given as a .proto file of their own.
Expects someapplication 1.0 of AcmeAppCo on dmuus/cloud-2 and azure/cloud-9, and
by default. Prints `ok` as its last line when everything answered as it should.
"""

import base64
import json
import pathlib
import subprocess
import sys
import tempfile


def main() -> None:
    wire, target, ca = sys.argv[1:]
    with tempfile.TemporaryDirectory() as generated:
        folder = str(pathlib.Path(wire).parent)
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}",
             f"--python_out={generated}", f"--grpc_python_out={generated}", wire],
            check=True,
        )
        sys.path.insert(0, generated)
        import grpc
        import dme_wire_pb2 as pb
        import dme_wire_pb2_grpc as rpc

        credentials = grpc.ssl_channel_credentials(pathlib.Path(ca).read_bytes())
        channel = grpc.secure_channel(target, credentials)
        ask(grpc, pb, rpc.MatchEngineApiStub(channel), rpc.DynamicLocGroupApiStub(channel))
    print("ok")


def ask(grpc, pb, engine, groups) -> None:
    def register(developer, app):
        request = pb.RegisterClientRequest(dev_name=developer, app_name=app, app_vers="1.0")
        reply = engine.RegisterClient(request, timeout=30)
        assert reply.status == 1 and reply.ver == 0, reply
        return reply.session_cookie

    cookie = register("AcmeAppCo", "someapplication")
    claims = cookie.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert sorted(claims) == ["exp", "iat", "key"], claims
    assert sorted(claims["key"]) == ["appname", "appvers", "devname", "kid", "peerip"], claims
    assert claims["exp"] - claims["iat"] == 24 * 3600 and isinstance(claims["key"]["kid"], int)
    assert claims["key"]["peerip"] == "127.0.0.1", claims

    here = pb.Loc(latitude=36, longitude=-96)
    found = engine.FindCloudlet(
        pb.FindCloudletRequest(session_cookie=cookie, carrier_name="dmuus", gps_location=here))
    assert found.status == 1 and found.fqdn.startswith("cloud-2.dmuus."), found
    assert found.cloudlet_location.latitude == 35 and found.ports[0].internal_port == 80, found

    listed = engine.GetAppInstList(pb.AppInstListRequest(session_cookie=cookie, gps_location=here))
    assert listed.status == 1 and [c.cloudlet_name for c in listed.cloudlets] == ["cloud-2", "cloud-9"], listed
    assert listed.cloudlets[0].distance < listed.cloudlets[1].distance

    checked = engine.VerifyLocation(
        pb.VerifyLocationRequest(session_cookie=cookie, carrier_name="azure",
                                 gps_location=pb.Loc(latitude=32.05, longitude=-91)))
    assert checked.gps_location_status == 1 and checked.gps_location_accuracy_km == 10, checked

    located = engine.GetLocation(pb.GetLocationRequest(session_cookie=cookie, carrier_name="dmuus"))
    assert located.status == 1 and located.carrier_name == "dmuus", located

    joined = engine.AddUserToGroup(pb.DynamicLocGroupRequest(session_cookie=cookie, lg_id=7))
    assert joined.status == 1 and joined.group_cookie, joined
    sent = groups.SendToGroup(pb.DlgMessage(lg_id=7, group_cookie=joined.group_cookie, message_id=42))
    assert sent.ack_id == 42, sent

    layer = register("Samsung", "SamsungEnablingLayer")
    addresses = engine.GetFqdnList(pb.FqdnListRequest(session_cookie=layer))
    assert [list(a.fqdns) for a in addresses.app_fqdns] == [["default.someapplication.acme.com"]], addresses

    try:
        engine.FindCloudlet(pb.FindCloudletRequest(carrier_name="dmuus", gps_location=here))
        raise AssertionError("let in without a cookie")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error
        assert error.details() == "VerifyCookie failed: missing cookie", error


main()
