//! Things between the machine and an object store, by the fields of a
//! request: its certificate and proxies.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use selvage_api::proto::{StateType, data_source::S3};

use crate::site::{MIB, ObjectStore, Site, fill, hash_of, restore_request, with};

/// A proxy that leads everybody to one store, whatever they call it. Says how
/// many it led.
fn tunnel(store: SocketAddr) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let led = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&led);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            std::thread::spawn(move || lead(client, store, &count));
        }
    });
    (url, led)
}

fn lead(mut client: TcpStream, store: SocketAddr, count: &AtomicUsize) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if client.read_exact(&mut byte).is_err() {
            return;
        }
        head.push(byte[0]);
    }
    if !head.starts_with(b"CONNECT store.example:443 ") {
        return;
    }
    count.fetch_add(1, Ordering::Relaxed);
    let mut onward = TcpStream::connect(store).unwrap();
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").unwrap();
    let (mut from, mut to) = (onward.try_clone().unwrap(), client.try_clone().unwrap());
    let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let _ = std::io::copy(&mut client, &mut onward);
    let _ = onward.shutdown(std::net::Shutdown::Both);
    let _ = back.join();
}

#[tokio::test]
async fn certificates_and_proxies_are_those_of_the_request() {
    let Some(site) = Site::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(store) = ObjectStore::rclone_with_tls(folder.path()) else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, 2 * MIB, 5);
    let loose = store.place("tls");
    site.backed_up("loose", "vol1", &loose).await;

    let strict = S3 { verify_tls: true, ..loose.clone() };
    let state = site.back_up("strict", "vol1", &strict).await;
    assert_eq!(state.state(), StateType::Error);
    assert!(state.msg.contains("its certificate is not trusted"), "{}", state.msg);

    let (url, led) = tunnel(store.address());
    // Only the proxy knows where that is.
    let far = S3 { endpoint: "https://store.example".into(), https_proxy: url, ..loose.clone() };
    site.backed_up("far", "vol1", &far).await;
    let request = restore_request("back", with(&far, "@loose"), true);
    site.volumes().await.create_lv(request).await.unwrap();
    assert_eq!(hash_of(&site.device("back").await), hash_of(&device));
    assert!(led.load(Ordering::Relaxed) > 0);
}
