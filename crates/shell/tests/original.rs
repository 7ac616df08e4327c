//! The WebRTC stack of the original's client calls a peer of ours. Its oldest
//! release whose handshake is safe enough to be accepted (RFC 7627).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{io::Write as _, process::Stdio, time::Duration};

use bytes::Bytes;
use selvage_shell::{
    Word,
    peer::{self, Options},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

const DEADLINE: Duration = Duration::from_secs(60);

/// Says loudly that a test did not run. On CI a missing part is a failure.
fn skip(part: &str, reason: &str) {
    assert!(std::env::var("CI").is_err(), "{part} is missing on CI: {reason}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {part}: {reason}");
}

#[tokio::test]
async fn it_is_heard_and_hears_a_burst_and_the_end() {
    let Some(program) = std::env::var_os("SELVAGE_TEST_PION") else {
        return skip("pion", "SELVAGE_TEST_PION is not set: run ./dev test");
    };
    let mut client = Command::new(program)
        .args(["what ", "is typed"])
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
            Some(Word::Data(bytes)) => heard.extend_from_slice(&bytes),
            other => panic!("{other:?} after {heard:?}"),
        }
    }
    let burst: Bytes = (0..256 * 1024_u32).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into();
    crm.outgoing.send(Word::Data(burst.clone())).await.unwrap();
    crm.outgoing.send(Word::Exit { code: 0, reason: String::new() }).await.unwrap();
    drop(crm);
    let mut printed = Vec::new();
    let reading = stdout.read_to_end(&mut printed);
    tokio::time::timeout(DEADLINE, reading).await.expect("its end").unwrap();
    assert!(printed == burst, "{} bytes of {}", printed.len(), burst.len());
    assert!(client.wait().await.unwrap().success());
}
