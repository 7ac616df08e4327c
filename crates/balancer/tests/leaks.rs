//! Nothing stays open behind a balancer. Alone in its process, so that all
//! file descriptors are its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use selvage_balancer::Protocol;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn traffic(bed: &Bed, seed: u64) {
    let mut stream = bed.connect(1000).await;
    let sent = noise(seed, 400_000);
    let (mut read, mut write) = stream.split();
    let mut came = vec![0; sent.len()];
    let send = write.write_all(&sent);
    soon(futures::future::try_join(send, read.read_exact(&mut came))).await.unwrap();
    assert!(came == sent);
    match seed % 3 {
        0 => stream.set_zero_linger().unwrap(),
        1 => stream.shutdown().await.unwrap(),
        _ => {}
    }
    drop(stream);
    let socket = UdpSocket::bind((bed.address, 0)).await.unwrap();
    socket.connect(bed.at(2000)).await.unwrap();
    socket.send(b"x").await.unwrap();
    soon(socket.recv(&mut [0; 16])).await.unwrap();
    let mut web = bed.connect(80).await;
    web.write_all(b"GET /a/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(read_all(&mut web).await.unwrap().starts_with(b"HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_given_back() {
    let (stream, datagrams) = (echo().await, datagram_echo("a").await);
    let web = target(async |mut stream| {
        while stream.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        }
    })
    .await;
    let before = open_files();
    for round in 0..3 {
        let bed = Bed::new();
        bed.publish(
            "it",
            vec![
                port(Protocol::Tcp, 1000, &[nobody().await, stream.address]),
                port(Protocol::Udp, 2000, &[datagrams.address]),
                prefixed(80, "a", &[web.address, nobody().await]),
            ],
        )
        .await;
        for seed in 0..30 {
            traffic(&bed, round * 100 + seed).await;
        }
        let published = open_files();
        assert!(published > before, "it is counted at all");
        soon(bed.balancer.withdraw("it")).await;
        drop(bed);
        until("all is closed", || open_files() <= before).await;
    }
}
