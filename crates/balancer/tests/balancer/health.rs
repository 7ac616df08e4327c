use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::Duration,
};

use jiff::Timestamp;
use selvage_balancer::{Health, Options, Port, Protocol};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::common::*;

#[tokio::test]
async fn a_target_that_goes_and_comes_back_is_reported() {
    let now = Timestamp::from_second(1_000_000).unwrap();
    let bed = Bed::with(Options { now: Arc::new(move || now), ..options() });
    let mut changes = bed.balancer.health_changes();
    let target = echo().await;
    let address = target.address;
    bed.tcp(&[address]).await;
    assert_eq!(soon(changes.recv()).await.unwrap(), ("it".into(), Health::Healthy));
    drop(target);
    let (id, health) = soon(changes.recv()).await.unwrap();
    assert_eq!(id, "it");
    let reason = "tcp port 1000: connection refused".to_owned();
    assert_eq!(health, Health::Unhealthy { reason, since: now });
    assert_eq!(bed.balancer.status("it").unwrap().health, health);
    let _back = target_on(TcpListener::bind(address).await.unwrap(), async |_| {});
    assert_eq!(soon(changes.recv()).await.unwrap(), ("it".into(), Health::Healthy));
    assert_eq!(bed.balancer.status("it").unwrap().health, Health::Healthy);
}

#[tokio::test]
async fn one_good_target_is_enough_and_one_bad_port_too_much() {
    let bed = Bed::new();
    let good = echo().await;
    let ports = |second| {
        vec![
            port(Protocol::Tcp, 1000, &[second, good.address]),
            port(Protocol::Tcp, 1001, &[second]),
        ]
    };
    bed.publish("it", ports(good.address)).await;
    until("healthy", || bed.balancer.status("it").unwrap().health.is_healthy()).await;
    bed.publish("it", ports(nobody().await)).await;
    until("unhealthy", || bed.balancer.status("it").unwrap().health.is_unhealthy()).await;
    let status = bed.balancer.status("it").unwrap();
    assert!(status.ports[0].health.is_healthy(), "{status:?}");
    assert!(status.ports[1].health.is_unhealthy(), "{status:?}");
    bed.publish("it", ports(good.address)).await;
    until("healthy", || bed.balancer.status("it").unwrap().health.is_healthy()).await;
}

#[tokio::test]
async fn without_targets_there_is_no_health() {
    let bed = Bed::new();
    let mut changes = bed.balancer.health_changes();
    bed.tcp(&[]).await;
    let (_, health) = soon(changes.recv()).await.unwrap();
    let Health::Unhealthy { reason, .. } = health else { panic!("{health:?}") };
    assert_eq!(reason, "tcp port 1000: no targets");
}

#[tokio::test]
async fn a_datagram_port_does_not_hold_back_the_others() {
    let bed = Bed::new();
    let target = echo().await;
    let to = [target.address];
    bed.publish("both", vec![port(Protocol::Udp, 1, &to), port(Protocol::Tcp, 1, &to)]).await;
    bed.publish("udp", vec![port(Protocol::Udp, 2, &to)]).await;
    until("healthy", || bed.balancer.status("both").unwrap().health.is_healthy()).await;
    assert_eq!(bed.balancer.status("udp").unwrap().health, Health::Unknown);
}

/// A target that takes connections and says what it is told to say.
async fn answering(status: &Arc<AtomicU16>) -> Running {
    let status = status.clone();
    target(move |mut stream| {
        let status = status.clone();
        async move {
            let mut request = [0; 1024];
            let Ok(count) = stream.read(&mut request).await else { return };
            let asked = request[..count].starts_with(b"GET /healthz?full HTTP/1.1\r\n");
            let status = if asked { status.load(Relaxed) } else { 400 };
            if status != 0 {
                let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
            let _ = stream.read(&mut request).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_path_is_asked_where_there_is_one() {
    let mut options = options();
    options.health.timeout = Duration::from_millis(300);
    let bed = Bed::with(options);
    let status = Arc::new(AtomicU16::new(204));
    let target = answering(&status).await;
    let web =
        Port { health_path: Some("/healthz?full".into()), ..prefixed(80, "a", &[target.address]) };
    bed.publish("it", vec![web]).await;
    let health = || bed.balancer.status("it").unwrap().health;
    until("healthy", || health().is_healthy()).await;
    for (answer, reason) in [
        (503, "http port 80: GET /healthz?full answers 503 Service Unavailable"),
        (0, "http port 80: no answer within 300ms"),
    ] {
        status.store(answer, Relaxed);
        until("unhealthy", || health().is_unhealthy()).await;
        let Health::Unhealthy { reason: seen, .. } = health() else { panic!() };
        assert_eq!(seen, reason);
        status.store(301, Relaxed);
        until("healthy", || health().is_healthy()).await;
    }
}
