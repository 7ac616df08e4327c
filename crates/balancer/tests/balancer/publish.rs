use std::{io::ErrorKind, time::Duration};

use selvage_balancer::{Balancer, Error, Limits, Options, Port, Protocol, Service};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream, UdpSocket},
};

use crate::common::*;

fn quick(drain: Duration) -> Options {
    let options = options();
    Options { limits: Limits { drain, ..options.limits.clone() }, ..options }
}

async fn refused(bed: &Bed, id: &str, ports: Vec<Port>) -> Error {
    bed.balancer.publish(Service { id: id.into(), ports }).await.unwrap_err()
}

async fn is_free(bed: &Bed, port: u16) -> bool {
    TcpListener::bind(bed.at(port)).await.is_ok()
}

#[tokio::test]
async fn all_ports_or_none() {
    let bed = Bed::new();
    let target = echo().await;
    let to = [target.address];
    let _other = TcpListener::bind(bed.at(1001)).await.unwrap();
    let _datagrams = UdpSocket::bind(bed.at(1002)).await.unwrap();
    let ports = [(Protocol::Tcp, 1001), (Protocol::Udp, 1002), (Protocol::Http, 1001)];
    for (protocol, number) in ports {
        let free = port(Protocol::Tcp, 1000, &to);
        let error = refused(&bed, "it", vec![free, port(protocol, number, &to)]).await;
        assert!(
            matches!(error, Error::Taken { port, protocol: p } if port == number && p == protocol),
            "{error:?}"
        );
        assert_eq!(error.to_string(), format!("{protocol} port {number} is taken"));
        assert!(is_free(&bed, 1000).await);
        assert!(bed.balancer.status("it").is_none());
    }
    // The same number of the other protocol is another port.
    bed.publish("it", vec![port(Protocol::Udp, 1001, &to), port(Protocol::Tcp, 1002, &to)]).await;
}

#[tokio::test]
async fn a_change_that_fails_changes_nothing() {
    let bed = Bed::new();
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    let _other = TcpListener::bind(bed.at(1001)).await.unwrap();
    let before = bed.seen("it").targets[0].address;
    let ports = vec![
        port(Protocol::Tcp, 1000, &[nobody().await]),
        port(Protocol::Tcp, 1001, &[nobody().await]),
    ];
    refused(&bed, "it", ports).await;
    assert_eq!(bed.balancer.status("it").unwrap().ports.len(), 1);
    assert_eq!(bed.seen("it").targets[0].address, before);
    bed.connect(1000).await;
}

#[tokio::test]
async fn services_do_not_take_ports_from_each_other() {
    let bed = Bed::new();
    let target = echo().await;
    let to = [target.address];
    let web = |public, prefix| prefixed(public, prefix, &to);
    bed.publish("one", vec![port(Protocol::Tcp, 1000, &to), port(Protocol::Udp, 1000, &to)]).await;
    bed.publish("web", vec![web(443, "a/b")]).await;
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Http] {
        let error = refused(&bed, "two", vec![port(protocol, 1000, &to)]).await;
        assert!(matches!(error, Error::Taken { port: 1000, .. }), "{error:?}");
    }
    let error = refused(&bed, "two", vec![port(Protocol::Tcp, 443, &to)]).await;
    assert!(matches!(error, Error::Taken { port: 443, .. }), "{error:?}");
    let error = refused(&bed, "two", vec![web(443, "/a/b/")]).await.to_string();
    assert!(
        error.contains("/a/b") && error.contains("\"web\"") && error.contains("\"two\""),
        "{error}"
    );
    bed.publish("two", vec![web(443, "a")]).await;
    // Another protocol on a port of one's own.
    let error = refused(&bed, "one", vec![port(Protocol::Http, 1000, &to)]).await;
    assert!(matches!(error, Error::Taken { .. }), "{error:?}");
    let error = refused(&bed, "tls", vec![Port { tls: true, ..web(444, "a") }]).await;
    assert!(matches!(error, Error::NoCertificate { port: 444 }), "{error:?}");
}

#[tokio::test]
async fn the_same_again_changes_nothing() {
    let bed = Bed::new();
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    let mut client = bed.connect(1000).await;
    client.write_all(b"a").await.unwrap();
    read_some(&mut client, 1).await;
    until("it is healthy", || bed.balancer.status("it").unwrap().health.is_healthy()).await;
    let before = bed.balancer.status("it");
    bed.tcp(&[target.address]).await;
    assert_eq!(bed.balancer.status("it"), before);
    client.write_all(b"b").await.unwrap();
    assert_eq!(read_some(&mut client, 1).await, "b");
}

#[tokio::test]
async fn connections_of_targets_that_stay_go_on() {
    let bed = Bed::with(quick(Duration::from_millis(100)));
    let (stays, leaves, comes) = (named("s").await, named("l").await, named("c").await);
    bed.tcp(&[stays.address, leaves.address]).await;
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut stream = bed.connect(1000).await;
        kept.push((read_some(&mut stream, 1).await, stream));
    }
    bed.tcp(&[stays.address, comes.address]).await;
    let (staying, leaving): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(name, _)| name == "s");
    assert!(!staying.is_empty() && !leaving.is_empty());
    for (_, mut stream) in leaving {
        assert_eq!(read_all(&mut stream).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    until("they are gone", || bed.seen("it").connections == staying.len()).await;
    for (_, mut stream) in staying {
        stream.write_all(b"still here").await.unwrap();
    }
    let mut names = std::collections::BTreeSet::new();

    for _ in 0..4 {
        let mut stream = bed.connect(1000).await;
        names.insert(read_some(&mut stream, 1).await);
    }
    assert!(names.contains("c") && !names.contains("l"), "{names:?}");
}

#[tokio::test]
async fn ports_come_and_go() {
    let bed = Bed::new();
    let target = echo().await;
    let to = [target.address];
    bed.publish("it", vec![port(Protocol::Tcp, 1000, &to), port(Protocol::Tcp, 1001, &to)]).await;
    bed.publish("it", vec![port(Protocol::Tcp, 1001, &to), prefixed(1002, "a", &to)]).await;
    assert!(is_free(&bed, 1000).await);
    assert!(!is_free(&bed, 1001).await && !is_free(&bed, 1002).await);
    bed.publish("it", vec![port(Protocol::Tcp, 1000, &to)]).await;
    assert!(!is_free(&bed, 1000).await && is_free(&bed, 1001).await && is_free(&bed, 1002).await);
}

#[tokio::test]
async fn withdrawing_waits_for_those_who_finish() {
    let bed = Bed::new();
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    let mut client = bed.connect(1000).await;
    client.write_all(b"a").await.unwrap();
    read_some(&mut client, 1).await;
    let balancer = bed.balancer.clone();
    let work = tokio::spawn(async move { balancer.withdraw("it").await });
    until("it is gone", || bed.balancer.status("it").is_none()).await;
    let at = bed.at(1000);
    soon(async { while TcpStream::connect(at).await.is_ok() {} }).await;
    // Nobody comes in, and who is inside goes on.
    client.write_all(b"b").await.unwrap();
    assert_eq!(read_some(&mut client, 1).await, "b");
    assert!(!work.is_finished());
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await.unwrap(), b"");
    soon(work).await.unwrap();
    assert!(is_free(&bed, 1000).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn withdrawing_cuts_those_who_do_not() {
    let bed = Bed::with(quick(Duration::from_millis(50)));
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    let mut clients = Vec::new();
    for seed in 0..20 {
        let mut stream = bed.connect(1000).await;
        clients.push(tokio::spawn(async move {
            let block = noise(seed, 100_000);
            let (mut read, mut write) = stream.split();
            let send = async { while write.write_all(&block).await.is_ok() {} };
            let mut nowhere = tokio::io::sink();
            let receive = tokio::io::copy(&mut read, &mut nowhere);
            let _ = futures::future::join(send, receive).await;
        }));
    }
    until("there is traffic", || bed.seen("it").bytes_out > 10_000_000).await;
    soon(bed.balancer.withdraw("it")).await;
    for client in clients {
        soon(client).await.unwrap();
    }
    assert!(is_free(&bed, 1000).await);
    bed.tcp(&[target.address]).await;
    assert_eq!(bed.seen("it").total, 0, "a new beginning");
    bed.connect(1000).await;
}

/// A port that is being closed is not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_goes_from_one_to_the_next() {
    let bed = Bed::with(quick(Duration::from_millis(50)));
    let target = echo().await;
    let ports = |protocol| vec![port(protocol, 1000, &[target.address])];
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Http];
    let mut withdrawn = Vec::new();
    for turn in 0..30 {
        let (id, protocol) = (turn.to_string(), protocols[turn % 3]);
        bed.publish(&id, ports(protocol)).await;
        let held = (protocol == Protocol::Tcp).then(|| bed.connect(1000));
        let held = futures::future::OptionFuture::from(held).await;
        let balancer = bed.balancer.clone();
        withdrawn.push(tokio::spawn(async move { balancer.withdraw(&id).await }));
        let id = turn.to_string();
        until("it is gone", || bed.balancer.status(&id).is_none()).await;
        bed.publish("next", ports(protocol)).await;
        soon(bed.balancer.withdraw("next")).await;
        drop(held);
    }
    for work in withdrawn {
        soon(work).await.unwrap();
    }
    assert!(bed.balancer.all().is_empty());
}

#[tokio::test]
async fn withdrawing_what_is_not_there_is_done_at_once() {
    let bed = Bed::new();
    soon(bed.balancer.withdraw("nothing")).await;
    assert!(bed.balancer.all().is_empty());
}

#[tokio::test]
async fn closed_is_closed() {
    let bed = Bed::new();
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    bed.publish("web", vec![prefixed(80, "a", &[target.address])]).await;
    assert_eq!(bed.balancer.all().len(), 2);
    soon(bed.balancer.close()).await;
    assert!(bed.balancer.all().is_empty());
    assert!(is_free(&bed, 1000).await && is_free(&bed, 80).await);
    let error = refused(&bed, "it", Vec::new()).await;
    assert!(matches!(error, Error::Closed), "{error:?}");
}

#[tokio::test]
async fn dropping_the_last_handle_ends_everything() {
    let bed = Bed::new();
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    let mut client = bed.connect(1000).await;
    client.write_all(b"a").await.unwrap();
    read_some(&mut client, 1).await;
    let at = bed.at(1000);
    drop(bed);
    assert_eq!(read_all(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    soon(async { while TcpListener::bind(at).await.is_err() {} }).await;
}

#[tokio::test]
async fn both_families_side_by_side() {
    // The first free number on both: nobody else here uses ports this low.
    let balancer = Balancer::new(Options { addresses: Options::default().addresses, ..options() });
    let target = echo().await;
    let mut number = 2900;
    loop {
        let ports = vec![
            port(Protocol::Tcp, number, &[target.address]),
            port(Protocol::Udp, number, &[target.address]),
        ];
        match balancer.publish(Service { id: "it".into(), ports }).await {
            Ok(()) => break,
            Err(Error::Taken { .. }) => number += 1,
            Err(error) => panic!("{error}"),
        }
    }
    for address in ["127.0.0.1", "::1"] {
        let mut client = soon(TcpStream::connect((address, number))).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        assert_eq!(read_some(&mut client, 5).await, "hello", "{address}");
    }
    soon(balancer.close()).await;
}
