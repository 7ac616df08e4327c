use std::{net::SocketAddr, time::Duration};

use selvage_balancer::{Health, Limits, Options, PortStatus, Protocol, Service};
use tokio::net::UdpSocket;

use crate::common::*;

async fn client(bed: &Bed) -> UdpSocket {
    let socket = UdpSocket::bind((bed.address, 0)).await.unwrap();
    // Only what comes from the public port is heard.
    socket.connect(bed.at(2000)).await.unwrap();
    socket
}

async fn publish(bed: &Bed, targets: &[SocketAddr]) {
    bed.publish("it", vec![port(Protocol::Udp, 2000, targets)]).await;
}

async fn ask(socket: &UdpSocket, what: &[u8]) -> Vec<u8> {
    socket.send(what).await.unwrap();
    let mut buffer = vec![0; 65536];
    let count = soon(socket.recv(&mut buffer)).await.unwrap();
    buffer.truncate(count);
    buffer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_hear_only_their_own() {
    let bed = Bed::new();
    let targets = [datagram_echo("a").await, datagram_echo("b").await];
    publish(&bed, &targets.each_ref().map(|target| target.address)).await;
    let mut tasks = Vec::new();
    let mut sum = 0;
    for seed in 0..50_u64 {
        let socket = client(&bed).await;
        let sizes: Vec<usize> = (0..20).map(|_| rand::random_range(0..1400)).collect();
        sum += sizes.iter().sum::<usize>() as u64;
        tasks.push(tokio::spawn(async move {
            let mut names = std::collections::BTreeSet::new();
            for (turn, size) in sizes.into_iter().enumerate() {
                let sent = noise(seed * 1000 + turn as u64, size);
                let came = ask(&socket, &sent).await;
                names.insert(came[0]);
                assert!(came[1..] == sent);
            }
            assert_eq!(names.len(), 1, "a session has one target");
            socket
        }));
    }
    let mut sockets = Vec::new();
    for task in tasks {
        sockets.push(soon(task).await.unwrap());
    }
    let seen = bed.seen("it");
    assert_eq!((seen.connections, seen.total, seen.errors), (50, 50, 0));
    let bytes = |seen: PortStatus| (seen.bytes_in, seen.bytes_out);
    until("all is counted", || bytes(bed.seen("it")) == (sum, sum + 1000)).await;
    assert_eq!(seen.targets.iter().map(|target| target.connections).collect::<Vec<_>>(), [25, 25]);
    assert_eq!(bed.balancer.status("it").unwrap().health, Health::Healthy);
}

#[tokio::test]
async fn the_largest_datagram_passes() {
    let bed = Bed::new();
    let target = datagram_echo("").await;
    publish(&bed, &[target.address]).await;
    let socket = client(&bed).await;
    let sent = noise(1, 65507);
    assert!(ask(&socket, &sent).await == sent);
    assert_eq!(ask(&socket, b"").await, b"");
}

#[tokio::test]
async fn silent_sessions_are_forgotten() {
    let options = options();
    let limits = Limits { udp_idle: Duration::from_millis(100), ..options.limits.clone() };
    let bed = Bed::with(Options { limits, ..options });
    let target = datagram_echo("a").await;
    publish(&bed, &[target.address]).await;
    let socket = client(&bed).await;
    assert_eq!(ask(&socket, b"1").await, b"a1");
    bed.until_empty("it").await;
    assert_eq!(ask(&socket, b"2").await, b"a2");
    assert_eq!(bed.seen("it").total, 2);
}

#[tokio::test]
async fn the_oldest_make_place() {
    let options = options();
    let limits = Limits { connections: 3, ..options.limits.clone() };
    let bed = Bed::with(Options { limits, ..options });
    let target = datagram_echo("a").await;
    publish(&bed, &[target.address]).await;
    let mut sockets = Vec::new();
    for turn in 0..10_u8 {
        let socket = client(&bed).await;
        assert_eq!(ask(&socket, &[turn]).await, [b'a', turn]);
        sockets.push(socket);
        assert!(bed.seen("it").connections <= 3);
    }
    // Whoever was evicted just begins anew.
    assert_eq!(ask(&sockets[0], b"x").await, b"ax");
    assert_eq!(bed.seen("it").errors, 0);
}

#[tokio::test]
async fn a_target_that_refuses_is_left_and_tried_again() {
    let bed = Bed::new();
    let (alive, dead) = (datagram_echo("a").await, UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let address = dead.local_addr().unwrap();
    drop(dead);
    publish(&bed, &[address, alive.address]).await;
    // One datagram of each is enough to know it. Some are lost: they are.
    let mut silent = Vec::new();
    for _ in 0..10 {
        let socket = client(&bed).await;
        socket.send(b"x").await.unwrap();
        silent.push(socket);
    }
    until("it is known", || bed.seen("it").targets[0].health.is_unhealthy()).await;
    assert!(!bed.balancer.status("it").unwrap().health.is_unhealthy(), "one is left");
    let _back = UdpSocket::bind(address).await.unwrap();
    // It never answers, but it does not refuse either.
    soon(async {
        while bed.seen("it").targets[0].health.is_unhealthy() {
            let socket = client(&bed).await;
            socket.send(b"x").await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn without_targets_datagrams_are_counted_as_lost() {
    let bed = Bed::new();
    publish(&bed, &[]).await;
    assert!(bed.balancer.status("it").unwrap().health.is_unhealthy());
    let socket = client(&bed).await;
    socket.send(b"x").await.unwrap();
    until("it is counted", || bed.seen("it").errors == 1).await;
    assert_eq!(bed.seen("it").connections, 0);
}

#[tokio::test]
async fn sessions_follow_their_targets() {
    let bed = Bed::new();
    let (first, second) = (datagram_echo("a").await, datagram_echo("b").await);
    publish(&bed, &[first.address]).await;
    let socket = client(&bed).await;
    assert_eq!(ask(&socket, b"1").await, b"a1");
    publish(&bed, &[first.address, second.address]).await;
    assert_eq!(ask(&socket, b"2").await, b"a2");
    publish(&bed, &[second.address]).await;
    assert_eq!(ask(&socket, b"3").await, b"b3");
    soon(bed.balancer.withdraw("it")).await;
    UdpSocket::bind(bed.at(2000)).await.unwrap();
}

/// A balancer with every address of this machine, and a port that it got.
async fn everywhere(target: SocketAddr) -> (Bed, u16) {
    let addresses = Options::default().addresses;
    let bed = Bed::with(Options { addresses, ..options() });
    // Others on this machine have some of them.
    for public in 21000..22000 {
        let ports = vec![port(Protocol::Udp, public, &[target])];
        if bed.balancer.publish(Service { id: "it".into(), ports }).await.is_ok() {
            return (bed, public);
        }
    }
    panic!("no free port");
}

#[tokio::test]
async fn whoever_asks_one_of_many_addresses_is_answered_by_that_one() {
    let target = datagram_echo("a").await;
    let (bed, public) = everywhere(target.address).await;
    let client = UdpSocket::bind((place(), 0)).await.unwrap();
    let mut buffer = [0; 100];
    for asked in [place(), place()] {
        let asked = SocketAddr::new(asked, public);
        client.send_to(b"who", asked).await.unwrap();
        let (count, from) = soon(client.recv_from(&mut buffer)).await.unwrap();
        assert_eq!((&buffer[..count], from), (b"awho".as_slice(), asked));
    }
    assert_eq!(bed.seen("it").connections, 2, "an address has a session of its own");
}

#[tokio::test]
async fn the_other_family_is_answered_as_well() {
    let Ok(client) = UdpSocket::bind("[::1]:0").await else {
        return selvage_testkit::say_skipped("IPv6", "this machine does not have it");
    };
    let target = datagram_echo("a").await;
    let (_bed, public) = everywhere(target.address).await;
    client.connect(("::1", public)).await.unwrap();
    assert_eq!(ask(&client, b"who").await, b"awho");
}
