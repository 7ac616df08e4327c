//! The WebRTC stack of the original's client calls a peer of ours: the release
//! that it came with, and a later one whose handshake is another (RFC 7627).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{path::PathBuf, process::Stdio, time::Duration};

use bytes::Bytes;
use selvage_shell::{
    Frame,
    peer::{self, Options},
};
use selvage_testkit::{say_skipped, skip};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_release_of_the_original_is_heard_and_hears() {
    converse("2.0.7").await;
}

#[tokio::test]
async fn a_later_release_is_heard_and_hears() {
    converse("2.2.0").await;
}

/// Input arrives; a burst and the end come back.
async fn converse(release: &str) {
    let programs = std::env::var_os("SELVAGE_TEST_PION").map(PathBuf::from);
    let program = programs.map(|folder| folder.join(release)).filter(|path| path.exists());
    let Some(program) = program else {
        if std::env::var_os("SELVAGE_TEST_WITHOUT_PION").is_some() {
            return say_skipped("pion", "there is no Go here, or its modules cannot be had");
        }
        return skip("pion", "SELVAGE_TEST_PION has no such client: run ./dev test");
    };
    let mut client = Command::new(program)
        .args(["what ", "is typed"])
        // Its log would be mixed with its output.
        .env("PION_LOG_DISABLE", "all")
        .env("PIONS_LOG_DISABLE", "all")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut stdin, stdout) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    let mut stdout = BufReader::new(stdout);
    let mut offer = String::new();
    stdout.read_line(&mut offer).await.unwrap();
    let (answer, mut crm) = peer::answer(&offer, Options::default()).await.unwrap();
    assert!(!crm.understood);
    stdin.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    assert!(tokio::time::timeout(DEADLINE, crm.opened()).await.unwrap());
    let mut heard = Vec::new();
    while heard != b"what is typed" {
        match tokio::time::timeout(DEADLINE, crm.incoming.recv()).await.unwrap() {
            Some(Frame::Data(bytes)) => heard.extend_from_slice(&bytes),
            other => panic!("{other:?} after {heard:?}"),
        }
    }
    let burst: Bytes = (0..256 * 1024_u32).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into();
    crm.outgoing.send(Frame::Data(burst.clone())).await.unwrap();
    crm.outgoing.send(Frame::Exit { code: 0, reason: String::new() }).await.unwrap();
    drop(crm);
    let mut printed = Vec::new();
    let reading = stdout.read_to_end(&mut printed);
    tokio::time::timeout(DEADLINE, reading).await.expect("its end").unwrap();
    assert!(printed == burst, "{} bytes of {}", printed.len(), burst.len());
    assert!(client.wait().await.unwrap().success());
}
