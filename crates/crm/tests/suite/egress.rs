//! Networks that an instance reaches, seen from inside of one.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream},
    process::Command,
    time::Duration,
};

use selvage_crm::Egress;

use crate::support::{
    ANSWER, OtherMachine, TestCloudlet, TestController, can_run, fetch, has_program, namespace,
    run_in,
};

/// Time that somebody who is there may take; nobody on one machine takes as
/// long. Packets that are dropped are never answered.
const ANSWERED: Duration = Duration::from_secs(3);

/// A service of the machine itself, at all of its addresses.
struct OwnService(TcpListener);

impl OwnService {
    fn start() -> Self {
        Self(TcpListener::bind("[::]:0").unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }
}

async fn reaches(namespace: &str, at: SocketAddr) -> bool {
    run_in(namespace, move || TcpStream::connect_timeout(&at, ANSWERED).is_ok()).await
}

/// The link-local address of a bridge, as its neighbours write it.
fn link_local(namespace: &str, bridge_at: Ipv4Addr, port: u16) -> SocketAddr {
    let printed = Command::new("ip").args(["-o", "addr"]).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let lines = || printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_bridge = format!("{bridge_at}/24");
    let bridge = lines().find(|words| words.contains(&of_bridge.as_str())).unwrap()[1].to_owned();
    let found = lines().find(|words| words[1] == bridge && words[2] == "inet6").unwrap();
    let address = found[3].split('/').next().unwrap().parse().unwrap();
    let folder = selvage_crm::platform::network::namespaces::FOLDER;
    let inside = Command::new("nsenter")
        .arg(format!("--net={folder}/{namespace}"))
        .args(["ip", "-o", "link", "show", "eth0"])
        .output();
    let inside = String::from_utf8(inside.unwrap().stdout).unwrap();
    let index = inside.split(':').next().unwrap().parse().unwrap();
    SocketAddr::V6(SocketAddrV6::new(address, port, 0, index))
}

/// Address at which another machine listens where clouds have their metadata.
fn link_local_beyond(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(169, 254, 169, number)
}

/// Another machine, with an address of a private network and a link-local one.
fn in_the_private_network(outside: &OtherMachine, number: u8) -> Ipv4Addr {
    let (near, far) = (Ipv4Addr::new(172, 31, number, 1), Ipv4Addr::new(172, 31, number, 2));
    let name = format!("outside-{number}");
    let cable = format!("slvbeyond{number}");
    let metadata = link_local_beyond(number).to_string();
    for arguments in [
        ["addr", "add", &format!("{near}/30"), "dev", &cable].to_vec(),
        ["-n", &name, "addr", "add", &format!("{far}/30"), "dev", "eth0"].to_vec(),
        ["-n", &name, "addr", "add", &format!("{metadata}/32"), "dev", "eth0"].to_vec(),
        ["route", "add", &format!("{metadata}/32"), "via", &far.to_string()].to_vec(),
        ["-n", &name, "route", "add", "default", "via", &outside.near().to_string()].to_vec(),
    ] {
        let done = Command::new("ip").args(&arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
    far
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_reaches_what_is_public_and_what_is_named() {
    if !can_run() || !has_program("nft") {
        return;
    }
    const NUMBER: u8 = 175;
    let outside = OtherMachine::new(NUMBER);
    let private = in_the_private_network(&outside, NUMBER);
    let own = OwnService::start();
    let bridge = Ipv4Addr::new(10, NUMBER, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    let mut server = outside.serve(folder.path());
    let named = [format!("{private}:8099"), format!("{bridge}:{}", own.port())];

    for opened in [false, true] {
        let mut place = TestCloudlet::new("egress", NUMBER);
        if opened {
            place.egress = Egress::parse(&named).unwrap();
        }
        let controller = TestController::start().await;
        let running = place.start(controller.address).await;
        controller.make(&place).await;
        let inside = namespace(&place, "hello");
        let at = |ip: Ipv4Addr, port| SocketAddr::new(IpAddr::V4(ip), port);

        assert!(reaches(&inside, at(outside.beyond(), 8099)).await, "a public address");
        let neighbour = at(outside.address(), 8099);
        assert!(TcpStream::connect_timeout(&neighbour, ANSWERED).is_ok(), "somebody is there");
        assert!(!reaches(&inside, neighbour).await, "in the machine's own network");
        // By the balancer, as everybody on this machine.
        assert!(reaches(&inside, place.public()).await, "a public port");
        assert!(fetch(place.public()).await.unwrap().contains(ANSWER));
        assert_eq!(reaches(&inside, at(private, 8099)).await, opened, "a private network");
        assert_eq!(reaches(&inside, at(bridge, own.port())).await, opened, "the machine");
        assert!(!reaches(&inside, at(outside.near(), own.port())).await, "at another address");
        let local = link_local(&inside, bridge, own.port());
        assert!(!reaches(&inside, local).await, "{local}");
        let metadata = at(link_local_beyond(NUMBER), 8099);
        assert!(TcpStream::connect_timeout(&metadata, ANSWERED).is_ok(), "somebody is there");
        assert!(!reaches(&inside, metadata).await, "{metadata}");

        controller.unmake(&place).await;
        running.stop().await;
        assert_eq!(place.left_behind(), Vec::<String>::new());
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
