//! What tests of cloudlets share: a controller's end of notify, a cloudlet with
//! an app that answers, and a platform that stops where it is told to.

mod place;
mod stuck;
mod upstairs;

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub(crate) use self::{
    place::{Life, Place, Running},
    stuck::Stuck,
    upstairs::Upstairs,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// What the app answers.
pub(crate) const ANSWER: &str = "hello from the edge";

/// Says loudly that a test did not run. On CI a missing part is a failure.
pub(crate) fn skip(part: &str, reason: &str) {
    assert!(std::env::var("CI").is_err(), "{part} is missing on CI: {reason}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {part}: {reason}");
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    folders.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

/// Whether containers can be made here; says so loudly when not.
pub(crate) fn can_run() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("containers", "this needs root");
        return false;
    }
    for program in ["runc", "busybox"] {
        if find(program).is_none() {
            skip(program, "it is not installed: run ./dev test");
            return false;
        }
    }
    true
}

/// Whether a program is there; says so loudly when not.
pub(crate) fn has_program(program: &str) -> bool {
    let there = find(program).is_some();
    if !there {
        skip(program, "it is not installed: run ./dev test");
    }
    there
}

/// Waits until the condition gives something.
pub(crate) async fn wait_for<T, F: Future<Output = Option<T>>>(
    what: &str,
    condition: impl Fn() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "gave up waiting for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What is answered at a public port; none when nobody does.
pub(crate) async fn fetch(place: SocketAddr) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(place).await.ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        text.contains(" 200 OK").then_some(text)
    };
    tokio::time::timeout(Duration::from_secs(5), asked).await.ok().flatten()
}
