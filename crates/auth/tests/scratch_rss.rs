#![allow(clippy::all, dead_code)]
#[path = "suite/harness.rs"]
mod harness;
use std::sync::Arc;
use harness::*;
fn rss(at: &str) {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    for l in s.lines().filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM")) { println!("{at}: {l}"); }
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pooled() {
    rss("start");
    let h = Arc::new(Harness::with(|o| { o.argon2 = selvage_auth::HashCost::default(); o.hashing_concurrency = 2; }).await);
    for n in 0..20 { h.add(&format!("u{n}"), &[]).await; }
    rss("one by one");
    for round in 0..2 {
        let mut set = tokio::task::JoinSet::new();
        for n in 0..100 { let h = h.clone(); set.spawn(async move { h.login_from(HERE, &format!("u{}", n % 20), PASSWORD).await.map(drop).map_err(|s| s.message().to_owned()) }); }
        let out = set.join_all().await;
        println!("ok {} err {:?}", out.iter().filter(|o| o.is_ok()).count(), out.iter().find(|o| o.is_err()));
        rss(&format!("after {round}"));
    }
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocating() {
    use argon2::PasswordHasher;
    rss("start");
    let permits = Arc::new(tokio::sync::Semaphore::new(2));
    let mut set = tokio::task::JoinSet::new();
    for _ in 0..200 { let p = permits.clone(); set.spawn(async move {
        let permit = p.acquire_owned().await.unwrap();
        tokio::task::spawn_blocking(move || { let _p = permit; argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, argon2::Params::new(19456,2,1,None).unwrap()).hash_password(b"correct horse").unwrap(); }).await.unwrap();
    }); }
    set.join_all().await;
    rss("after");
}
