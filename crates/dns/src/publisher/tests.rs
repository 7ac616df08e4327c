//! Updates against a real BIND.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{RecordType, rdata::tsig::TsigAlgorithm},
};
use jiff::Timestamp;
use selvage_kit::{
    clock::{ManualClock, SystemClock},
    config::SecretFile,
};
use selvage_store::embedded::{Embedded, Options};
use tokio::net::UdpSocket;

use super::*;
use crate::{
    directory::tests::{directory, instance},
    zone::tests::name,
};

const NAMED: &str = "/usr/sbin/named";
const SECRET: &str = "c2VsdmFnZS10ZXN0cy1zaWduLXVwZGF0ZXMtd2l0aC1pdA==";
const ZONE: &str = "\
$TTL 60
@ SOA ns hostmaster 1 300 60 3600 10
@ NS ns
ns A 127.0.0.1
ns.own TXT \"kept\"
";

/// BIND with the zone `edge.example`, which it changes for whoever has the key.
struct Bind {
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

impl Drop for Bind {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Bind {
    /// None, and a line that says so, where it is not installed.
    fn install() -> Option<Self> {
        if !Path::new(NAMED).exists() {
            selvage_testkit::skip("named", "it is not installed: run ./dev test");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = folder.path().display();
        let config = format!(
            "options {{ directory \"{at}\"; pid-file none; session-keyfile none; recursion no;\n\
             listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; }};\n\
             controls {{ }};\n\
             key \"selvage\" {{ algorithm hmac-sha256; secret \"{SECRET}\"; }};\n\
             zone \"edge.example\" {{ type primary; file \"zone\";\n\
             allow-update {{ key \"selvage\"; }}; }};\n"
        );
        fs::write(folder.path().join("named.conf"), config).unwrap();
        fs::write(folder.path().join("zone"), ZONE).unwrap();
        let bind = Self { folder, port, process: None };
        bind.write_key(SECRET);
        Some(bind)
    }

    async fn start(&mut self) {
        let config = self.folder.path().join("named.conf");
        let mut command = Command::new(NAMED);
        command.arg("-g").arg("-c").arg(config).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        while self.ask("ns.edge.example", RecordType::A).await.is_empty() {
            assert!(self.process.as_mut().unwrap().try_wait().unwrap().is_none(), "named ended");
        }
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn write_key(&self, secret: &str) {
        let path = self.folder.path().join("key");
        fs::write(&path, format!("{secret}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn primary(&self) -> Primary {
        Primary {
            server: format!("127.0.0.1:{}", self.port),
            key_name: name("selvage"),
            algorithm: TsigAlgorithm::HmacSha256,
            key_file: SecretFile(self.folder.path().join("key")),
            clock: Arc::new(SystemClock),
        }
    }

    /// Data of the records that it has; none while it does not answer.
    async fn ask(&self, asked: &str, kind: RecordType) -> Vec<String> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server: SocketAddr = ([127, 0, 0, 1], self.port).into();
        let mut query = Message::new(rand::random(), MessageType::Query, OpCode::Query);
        query.add_query(Query::query(name(asked), kind));
        socket.connect(server).await.unwrap();
        let mut buffer = [0; 4096];
        for _ in 0..50 {
            // Refused where nobody listens.
            if socket.send(&query.to_vec().unwrap()).await.is_err() {
                continue;
            }
            let answer = tokio::time::timeout(Duration::from_millis(200), socket.recv(&mut buffer));
            if let Ok(Ok(length)) = answer.await {
                let answer = Message::from_vec(&buffer[..length]).unwrap();
                let mut found: Vec<_> =
                    answer.answers.iter().map(|record| record.data.to_string()).collect();
                found.sort();
                return found;
            }
        }
        Vec::new()
    }
}

async fn publisher(bind: &Bind, directory: &Arc<Directory>, store: &SharedStore) -> Publisher {
    publisher_at(bind, directory, store, Arc::new(SystemClock)).await
}

async fn publisher_at(
    bind: &Bind,
    directory: &Arc<Directory>,
    store: &SharedStore,
    clock: Arc<dyn Clock>,
) -> Publisher {
    let directory = Arc::clone(directory);
    Publisher::open(directory, bind.primary(), Arc::clone(store), clock).await.unwrap()
}

const WEB: &str = "web.here.op.edge.example";
const SERVICE: &str = "_acmeweb10._tcp.web.here.op.edge.example";

#[tokio::test]
async fn another_server_has_the_names_that_devices_receive() {
    let Some(mut bind) = Bind::install() else { return };
    bind.start().await;
    let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
    let directory = directory();
    let publisher = publisher(&bind, &directory, &store).await;
    // Nothing is known yet, so nothing is said.
    assert_eq!(publisher.run().await.unwrap().changes, 0);

    directory.instances.put(instance("web", WEB, "10.1.0.1")).unwrap();
    directory.publish();
    let sent = publisher.run().await.unwrap().changes;
    assert!(sent > 2, "{sent}");
    assert_eq!(bind.ask(WEB, RecordType::A).await, ["10.1.0.1"]);
    let service = bind.ask(SERVICE, RecordType::SRV).await;
    assert!(service.iter().all(|data| data.ends_with("web.here.op.edge.example.")), "{service:?}");
    assert!(!service.is_empty());
    // What is the same is not sent again.
    assert_eq!(publisher.run().await.unwrap().changes, 0);
    // Its own records are as they were.
    assert_eq!(bind.ask("edge.example", RecordType::NS).await, ["ns.edge.example."]);
    assert_eq!(bind.ask("ns.edge.example", RecordType::A).await, ["127.0.0.1"]);

    directory.instances.put(instance("web", WEB, "10.1.0.2")).unwrap();
    directory.publish();
    publisher.run().await.unwrap();
    assert_eq!(bind.ask(WEB, RecordType::A).await, ["10.1.0.2"], "in place of the other");
    directory.instances.put(instance("web", WEB, "2001:db8::7")).unwrap();
    directory.publish();
    publisher.run().await.unwrap();
    assert_eq!(bind.ask(WEB, RecordType::A).await, Vec::<String>::new());
    assert_eq!(bind.ask(WEB, RecordType::AAAA).await, ["2001:db8::7"]);

    directory.instances.remove(&instance("web", WEB, "10.1.0.2")).unwrap();
    directory.publish();
    publisher.run().await.unwrap();
    assert_eq!(bind.ask(WEB, RecordType::AAAA).await, Vec::<String>::new());
    assert_eq!(bind.ask(SERVICE, RecordType::SRV).await, Vec::<String>::new());
    assert!(publisher.published.is_empty(), "nothing is left to take back");
}

/// Somebody removes a record at the server, or brings an old copy of the zone back.
#[tokio::test]
async fn records_that_the_server_lost_come_back() {
    let Some(mut bind) = Bind::install() else { return };
    bind.start().await;
    let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
    let (directory, clock) = (directory(), ManualClock::new(Timestamp::UNIX_EPOCH));
    let publisher = publisher_at(&bind, &directory, &store, Arc::new(clock.clone())).await;
    directory.instances.put(instance("web", WEB, "10.1.0.1")).unwrap();
    directory.publish();
    publisher.run().await.unwrap();
    assert_eq!(bind.ask(WEB, RecordType::A).await, ["10.1.0.1"]);

    let removal = Change { name: name(WEB), records: Vec::new() };
    bind.primary().update(&name("edge.example"), &[removal]).await.unwrap();
    assert!(bind.ask(WEB, RecordType::A).await.is_empty());
    clock.advance(REFRESH_INTERVAL - Duration::from_secs(1));
    assert_eq!(publisher.run().await.unwrap().changes, 0, "it is not asked all the time");
    clock.advance(Duration::from_secs(1));
    assert!(publisher.run().await.unwrap().changes > 0);
    assert_eq!(bind.ask(WEB, RecordType::A).await, ["10.1.0.1"]);
    assert_eq!(publisher.run().await.unwrap().changes, 0, "until the next time");
}

/// Whoever runs next takes back what is not there any more.
#[tokio::test]
async fn names_of_a_process_that_ended_are_taken_back() {
    let Some(mut bind) = Bind::install() else { return };
    bind.start().await;
    let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
    let before = directory();
    for app in 0..80 {
        let uri = format!("app{app}.here.op.edge.example");
        before.instances.put(instance(&format!("app{app}"), &uri, "10.1.0.1")).unwrap();
    }
    before.publish();
    publisher(&bind, &before, &store).await.run().await.unwrap();
    assert_eq!(bind.ask("app79.here.op.edge.example", RecordType::A).await, ["10.1.0.1"]);

    let after = directory();
    let next = publisher(&bind, &after, &store).await;
    assert_eq!(next.run().await.unwrap().changes, 0, "it does not know yet what there is");
    assert_eq!(bind.ask("app79.here.op.edge.example", RecordType::A).await, ["10.1.0.1"]);
    after.instances.put(instance("app0", "app0.here.op.edge.example", "10.1.0.1")).unwrap();
    after.publish();
    next.run().await.unwrap();
    assert_eq!(bind.ask("app0.here.op.edge.example", RecordType::A).await, ["10.1.0.1"]);
    assert!(bind.ask("app79.here.op.edge.example", RecordType::A).await.is_empty());
    assert!(bind.ask("app1.here.op.edge.example", RecordType::A).await.is_empty());
}

#[tokio::test]
async fn failures_are_reported_and_made_up_for() {
    let Some(mut bind) = Bind::install() else { return };
    let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
    let directory = directory();
    directory.instances.put(instance("web", WEB, "10.1.0.1")).unwrap();
    directory.publish();
    let publisher = publisher(&bind, &directory, &store).await;
    let failure = async || publisher.run().await.unwrap_err().message().to_owned();
    let away = failure().await;
    assert!(away.contains(&format!("name server 127.0.0.1:{}", bind.port)), "{away}");

    bind.start().await;
    bind.write_key("d3Jvbmc=");
    let wrong = failure().await;
    assert!(wrong.contains("does not accept the key selvage."), "{wrong}");
    bind.write_key("no base64 at all");
    let unreadable = failure().await;
    assert!(unreadable.contains("dns.update.key_file: it holds no key in base64"), "{unreadable}");
    assert!(!unreadable.contains("at all"), "a secret is told: {unreadable}");
    assert!(bind.ask(WEB, RecordType::A).await.is_empty());
    bind.write_key(SECRET);
    publisher.run().await.unwrap();
    assert_eq!(bind.ask(WEB, RecordType::A).await, ["10.1.0.1"]);
}
