#![allow(clippy::all, clippy::unwrap_used, clippy::print_stdout)]
use std::{sync::Arc, time::{Duration, Instant}};
use selvage_api::edgeproto::*;
use selvage_notify::{Cache, Exchange, NotifyServer, OpenGate, ServerOptions, ClientOptions};
use selvage_sim::{SimFleet, SimOptions};
fn rss() -> u64 {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    s.lines().find(|l| l.starts_with("VmRSS")).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let n: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let per: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let flavors = Cache::<Flavor>::new().unwrap();
    let clusters = Cache::<ClusterInst>::new().unwrap();
    let cloudlets = Cache::<Cloudlet>::new().unwrap();
    let apps = Cache::<App>::new().unwrap();
    let insts = Cache::<AppInst>::new().unwrap();
    let infos = Cache::<CloudletInfo>::new().unwrap();
    let t = Instant::now();
    for i in 0..n {
        for j in 0..per {
            clusters.put(ClusterInst { key: Some(ClusterInstKey { cluster_key: Some(ClusterKey { name: format!("c{j}") }), cloudlet_key: Some(SimFleet::cloudlet(i)), developer: "d".into() }), state: TrackedState::Ready.into(), ..Default::default() }).unwrap();
        }
    }
    println!("fill {} objects {:?} rss {} MiB", clusters.len(), t.elapsed(), rss() / 1024);
    let ex = Exchange::new().send(flavors.clone()).send(cloudlets.clone()).send(clusters.clone()).send(apps.clone()).send(insts.clone()).receive(infos.clone()).receive(Cache::<AppInstInfo>::new().unwrap()).receive(Cache::<ClusterInstInfo>::new().unwrap()).receive(Cache::<Node>::new().unwrap());
    let t = Instant::now();
    let server = NotifyServer::new(ex, ServerOptions { gate: Arc::new(OpenGate), ..Default::default() });
    println!("index {:?} rss {}", t.elapsed(), rss() / 1024);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(tonic::transport::Server::builder().add_service(server.service()).serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)));
    let base = rss();
    if std::env::var("ONLY_SERVER").is_ok() {
        println!("{address}");
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let peers = server.peers().len() as u64;
            println!("{peers} peers, {} KiB each", (rss() - base) / peers.max(1));
            if std::env::var("CHURN").is_ok() { flavors.put(Flavor { key: Some(FlavorKey { name: "x".into() }), ram: rand::random(), ..Default::default() }).unwrap(); }
        }
    }
    let address = std::env::var("CONNECT").unwrap_or(address);
    let t = Instant::now();
    let mut o = SimOptions::new(vec![address.clone()], SimFleet::cloudlet(0));
    o.client = ClientOptions { addresses: vec![address], negotiation: Duration::from_secs(60), ..Default::default() };
    let fleet = SimFleet::start(n, &o).unwrap();
    println!("started {:?} rss +{} KiB each", t.elapsed(), (rss() - base) / n as u64);
    while fleet.in_sync() < n { tokio::time::sleep(Duration::from_millis(20)).await; }
    println!("in sync {:?}, {} notices; both ends {} KiB per stream", t.elapsed(), fleet.received(), (rss() - base) / n as u64);
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("rss both ends {} KiB per stream", (rss() - base) / n as u64);
    // one change to everybody
    let t = Instant::now();
    flavors.put(Flavor { key: Some(FlavorKey { name: "x".into() }), ..Default::default() }).unwrap();
    while !fleet.crms().iter().all(|c| c.mirrored()[1] == 1) { tokio::time::sleep(Duration::from_millis(2)).await; }
    println!("one flavor to all {:?}", t.elapsed());
    let t = Instant::now();
    let before = fleet.received();
    fleet.break_connections();
    loop {
        let ok = fleet.crms().iter().filter(|c| { let s = c.status().client; s.in_sync && s.stats.connects >= 2 }).count();
        if ok == n { break; }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("reconnected {:?}, {} notices; rss {} KiB per stream", t.elapsed(), fleet.received() - before, (rss() - base) / n as u64);
}
