//! The name server as resolvers and strangers meet it: asked with `dig`, and by
//! packets that no resolver would send.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    path::Path,
    process::Command,
    time::Duration,
};

use selvage_tests::{
    Selvage, cloudlet,
    process::{Cli, wait_for},
    real::{free_port, skip},
};

const ZONE: &str = "selvage.internal";

fn has_dig() -> bool {
    let found = Path::new("/usr/bin/dig").exists();
    if !found {
        skip("dig", "it is not installed: run ./dev test");
    }
    found
}

/// Address of the name server of a process.
fn server(selvage: &Selvage) -> SocketAddr {
    selvage.ready()["addresses"]["dns"].as_str().expect("no name server").parse().unwrap()
}

/// Output of `dig`, asked once.
fn dig(server: SocketAddr, args: &[&str]) -> String {
    let mut command = Command::new("dig");
    command.arg(format!("@{}", server.ip())).args(["-p", &server.port().to_string()]);
    let output = command.args(["+time=5", "+tries=1"]).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Data of the records that answer, one a line.
fn short(server: SocketAddr, name: &str, kind: &str) -> Vec<String> {
    dig(server, &["+short", name, kind]).lines().map(str::to_owned).collect()
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

/// A question for the address of a name, as it is on the wire.
fn question(name: &str) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap());
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

#[test]
fn a_resolver_is_answered_and_an_unknown_client_refused() {
    if !has_dig() {
        return;
    }
    // More addresses than fit into a datagram.
    let many: Vec<String> = (1..=90).map(|last| format!("\"192.0.2.{last}\"")).collect();
    let many = format!("dns.addresses=[{}]", many.join(","));
    let selvage = Selvage::up(&["--set", &many, "--set", "dns.secondaries=127.0.0.9"]);
    let server = server(&selvage);

    let soa = dig(server, &[ZONE, "SOA"]);
    assert!(soa.contains("status: NOERROR") && soa.contains("flags: qr aa rd;"), "{soa}");
    assert!(soa.contains("ns.selvage.internal. hostmaster.selvage.internal."), "{soa}");
    let missing = dig(server, &["no.such.app.selvage.internal"]);
    assert!(missing.contains("status: NXDOMAIN") && missing.contains("AUTHORITY: 1"), "{missing}");
    let empty = dig(server, &[ZONE, "MX"]);
    assert!(
        empty.contains("status: NOERROR") && empty.contains("ANSWER: 0, AUTHORITY: 1"),
        "{empty}"
    );
    for other in ["example.com", "internal", "selvage.internal.example"] {
        let refused = dig(server, &[other]);
        assert!(
            refused.contains("status: REFUSED") && refused.contains("AUTHORITY: 0"),
            "{refused}"
        );
    }
    let any = dig(server, &["ns.selvage.internal", "ANY", "+notcp"]);
    assert!(any.contains("RFC8482") && any.contains("ANSWER: 1,"), "{any}");

    // What does not fit into a datagram is had by TCP.
    let cut = dig(server, &["ns.selvage.internal", "+ignore", "+noall", "+comments"]);
    assert!(cut.contains(" tc") && cut.contains("ANSWER: 0,"), "{cut}");
    assert_eq!(short(server, "ns.selvage.internal", "A").len(), 90);
    assert_eq!(dig(server, &["+tcp", "+short", ZONE, "NS"]).trim(), "ns.selvage.internal.");

    // The whole zone is for those who are listed, and by TCP alone.
    let stranger = dig(server, &["-b", "127.0.0.1", ZONE, "AXFR"]);
    assert!(stranger.contains("Transfer failed"), "{stranger}");
    let secondary = dig(server, &["-b", "127.0.0.9", ZONE, "AXFR"]);
    assert_eq!(secondary.matches("\tSOA\t").count(), 2, "{secondary}");
    assert_eq!(secondary.matches("\tA\t").count(), 90, "{secondary}");
    let datagram = dig(server, &["-b", "127.0.0.9", "+notcp", "+comments", ZONE, "IXFR=1"]);
    assert!(datagram.contains("status: REFUSED"), "{datagram}");
}

#[test]
fn bad_packets_do_no_harm() {
    if !has_dig() {
        return;
    }
    let selvage = Selvage::up(&["--set", "dns.rate=0"]);
    let server = server(&selvage);
    let attacker = socket();
    let good = question(ZONE);
    let mut answer = good.clone();
    answer[2] |= 0x80;
    let mut looped = good[..12].to_vec();
    looped.extend([0xc0, 12, 0, 1, 0, 1]);
    let mut many = good.clone();
    many[4] = 0xff;
    let oversize = vec![0xff; 9000];
    let packets: [&[u8]; 6] = [&[], &[0; 5], &answer, &looped, &many, &oversize];
    for packet in packets {
        attacker.send_to(packet, server).unwrap();
    }
    for length in 0..good.len() {
        attacker.send_to(&good[..length], server).unwrap();
    }
    // By TCP: half a message, and one that never comes.
    for bytes in [&[0xff, 0xff, 1, 2, 3][..], &[0, 0], &[0, 3, 1, 2, 3]] {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.write_all(bytes).unwrap();
    }
    assert_eq!(short(server, ZONE, "NS"), ["ns.selvage.internal."]);
    assert_eq!(dig(server, &["+tcp", "+short", ZONE, "NS"]).trim(), "ns.selvage.internal.");
    assert!(!selvage.log().contains("panicked"), "{}", selvage.log());
}

#[test]
fn nobody_gets_more_than_a_share() {
    let limits = ["dns.rate=1", "dns.connections=4", "dns.idle_timeout=2s"];
    let flags: Vec<&str> = limits.iter().flat_map(|limit| ["--set", limit]).collect();
    let selvage = Selvage::up(&flags);
    let server = server(&selvage);
    let asking = socket();
    for _ in 0..40 {
        asking.send_to(&question(ZONE), server).unwrap();
    }
    // Half of what is beyond the limit is sent to TCP, the rest gets nothing.
    let mut buffer = [0; 512];
    let (mut whole, mut cut) = (0, 0);
    while cut < 10 {
        let length = asking.recv(&mut buffer).unwrap();
        if buffer[2] & 2 == 0 {
            whole += 1
        } else {
            cut += 1
        }
        assert!(length <= 512);
    }
    assert!((1..20).contains(&whole), "{whole} of 40 were answered");

    // One network has a quarter of the connections.
    let mut first = TcpStream::connect(server).unwrap();
    first.write_all(&[[0, 34].as_slice(), &question(ZONE)].concat()).unwrap();
    first.read_exact(&mut [0; 2]).unwrap();
    let mut second = TcpStream::connect(server).unwrap();
    assert_eq!(second.read(&mut buffer).unwrap_or(0), 0, "one too many");
    // And an idle one is closed.
    first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).unwrap();
}

#[test]
fn the_name_server_is_off_by_default_and_its_address_is_printed() {
    let off = Selvage::up(&["--set", "dns.listen=off"]);
    assert!(off.ready()["addresses"]["dns"].is_null(), "{}", off.ready());
    let cli = Cli::admin_of(&off);
    let printed = cli.run(&["dns", "lookup", "a.selvage.internal"]);
    assert!(printed.code != 0 && printed.stderr.contains("no name server"), "{printed:?}");
    drop(off);
    let alone = Selvage::part("controller", &[]);
    assert!(alone.ready()["addresses"]["dns"].is_null(), "{}", alone.ready());
    drop(alone);

    let selvage = Selvage::up(&["--set", "controller.root_domain=edge.example"]);
    let server = server(&selvage);
    assert!(server.ip().is_loopback());
    let greeting = format!("below edge.example are answered by DNS on {server}");
    assert!(selvage.log().contains(&greeting), "{}", selvage.log());
    let cli = Cli::admin_of(&selvage);
    let status = cli.ok(&["status"]);
    assert!(status.contains(&server.to_string()), "{status}");
    assert_eq!(cli.ok(&["dns", "lookup", "ns.edge.example"]), "127.0.0.1\n");
    let missing = cli.run(&["dns", "lookup", "no.edge.example"]);
    assert!(missing.code != 0 && missing.stderr.contains("nothing by the name"), "{missing:?}");
    let other = cli.run(&["dns", "lookup", "example.com"]);
    assert!(other.code != 0 && other.stderr.contains("does not answer for"), "{other:?}");
}

fn can_run() -> bool {
    selvage_testkit::containers::can_run(&["runc"]) && has_dig()
}

const APP: [&str; 6] = ["--developer", "acme", "--appname", "web", "--appvers", "1"];
const PLACE: [&str; 6] = ["--operator", "op", "--cloudlet", "named", "--cluster", "autoclusterweb"];
const NAME: &str = "autoclusterweb.named.op.selvage.internal";
/// Served by a process that the container's first one can outlive.
const COMMAND: &str = "/bin/sh -c '/bin/httpd -p 8080 -h /www; while :; do sleep 1; done'";

#[test]
fn a_name_leads_to_what_answers_and_to_nothing_else() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("site.yaml"), "common: {network_scheme: 10.186.0.0/16}\n").unwrap();
    let image = cloudlet::busybox(&["sh", "httpd", "sleep", "killall"]);
    let image = image.file("www/index.html", 0o644, b"named").unwrap();
    image.write("localhost/web:1", Path::new(&path("web.tar"))).unwrap();
    let port = free_port();
    let notified = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let settings = [
        format!("crm.site={}", path("site.yaml")),
        format!("crm.image_folders={}", directory.path().display()),
        "crm.runtime=oci".to_owned(),
        "crm.cloudlet=op/named".to_owned(),
        format!("dns.listen=127.0.0.1:{port}"),
        format!("dns.secondaries={}", notified.local_addr().unwrap()),
    ];
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let home = directory.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let mut selvage = Selvage::up_in(&home, &flags);
    let server = server(&selvage);
    assert_eq!(server.port(), port);
    let cli = Cli::admin_of(&selvage);
    cloudlet::furnish_here(&cli, "named");
    let image = format!("file://{}", path("web.tar"));
    let of = ["--imagepath", &image, "--imagetype", "docker", "--deployment", "docker"];
    let needs = ["--accessports", "tcp:8080", "--defaultflavor", "s", "--command", COMMAND];
    cli.ok(&[&["app", "create"][..], &APP, &of, &needs].concat());
    assert!(short(server, NAME, "A").is_empty());
    cli.ok(&[&["appinst", "create"][..], &APP, &PLACE].concat());

    // The name that a device is told leads to the app.
    let device = ["--carrier", "op", "--latitude", "1", "--longitude", "1"];
    let found = cli.ok(&[&["dme", "find"][..], &APP, &device].concat());
    assert!(found.contains(NAME), "{found}");
    let named = || Some(short(server, NAME, "A")).filter(|found| !found.is_empty());
    assert_eq!(wait_for("the name", named), ["10.186.1.1"]);
    assert_eq!(cli.ok(&["dns", "lookup", NAME]), "10.186.1.1\n");
    let service = format!("_acmeweb1._tcp.{NAME}");
    assert_eq!(short(server, &service, "SRV"), [format!("0 0 8080 {NAME}.")]);
    let mut page = TcpStream::connect("10.186.1.1:8080").unwrap();
    page.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    page.read_to_string(&mut text).unwrap();
    assert!(text.contains("named"), "{text}");
    // A listed secondary heard that the zone has changed.
    let mut notice = [0; 512];
    let (length, _) = notified.recv_from(&mut notice).unwrap();
    assert_eq!((notice[2] >> 3) & 15, 4, "the code of a notice");
    assert!(notice[..length].windows(8).any(|part| part == b"internal"));

    // Nobody is sent to what does not answer.
    cli.ok(&["exec", "web", "--", "/bin/killall", "httpd"]);
    wait_for("the name to go", || short(server, NAME, "A").is_empty().then_some(()));
    let gone = dig(server, &[&service, "SRV"]);
    assert!(gone.contains("NXDOMAIN"), "{gone}");
    cli.ok(&["exec", "web", "--", "/bin/httpd", "-p", "8080", "-h", "/www"]);
    wait_for("the name to come back", named);

    // A restart finds it again.
    selvage.kill();
    let selvage = Selvage::up_in(&home, &flags);
    wait_for("the name after a restart", named);
    let cli = Cli::admin_of(&selvage);
    cli.ok(&[&["appinst", "delete", "--yes"][..], &APP, &PLACE].concat());
    wait_for("the name to be gone", || short(server, NAME, "A").is_empty().then_some(()));
}
