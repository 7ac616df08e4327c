//! Rules of machines by SSH, one by one.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use selvage_kaas::provider::{
    Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request, State,
    Wipe,
    ssh::{Ssh, SshMachine, SshOptions, claims::Claim},
};
use selvage_store::Table;

use super::{
    super::conformance,
    lab::{SshLab, key_pair, operation, wanted},
};

/// The provider, with agents that join whenever it is asked how far they are.
struct Joining(Arc<Ssh>, Arc<SshLab>);

/// No agent takes longer to join, also on a machine with much to do.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Asks until the agent of an operation is there.
pub(super) async fn until_up(lab: &SshLab, provider: &Ssh, operation: &OperationId) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < deadline, "the agent of {operation:?} does not join");
        lab.join().await;
        match provider.observe(operation).await.unwrap().state {
            State::Deploying => tokio::time::sleep(Duration::from_millis(5)).await,
            State::Up { .. } => return,
            State::Failed(reason) => panic!("{reason}"),
        }
    }
}

#[async_trait]
impl Provider for Joining {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        self.0.offers(instance_type).await
    }

    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        self.0.acquire(operation, request).await
    }

    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error> {
        self.1.join().await;
        self.0.observe(operation).await
    }

    async fn release(&self, operation: &OperationId, wipe: Wipe) -> Result<bool, Error> {
        self.0.release(operation, wipe).await
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        self.0.list_owned().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_conforms() {
    let Some(lab) = SshLab::open(&["a", "b", "c"]).await else { return };
    let lab = Arc::new(lab);
    let provider = Arc::new(Joining(lab.provider().await, Arc::clone(&lab)));
    conformance::conforms(provider).await;
    lab.check_clean("conformance");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_shows_another_host_key_is_refused() {
    let Some(mut lab) = SshLab::open(&["a"]).await else { return };
    key_pair(&lab.path("other"));
    let other = fs::read_to_string(lab.path("other.pub")).unwrap();
    let fingerprint = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for pinned in [other.trim(), fingerprint] {
        lab.options.machines.get_mut("a").unwrap().host_keys = vec![pinned.to_owned()];
        let provider = lab.provider().await;
        let refused = provider.acquire(&operation("op-1"), &wanted()).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("shows host key SHA256:"), "{text}");
        assert!(text.contains("kaas.ssh.machines.a.host_keys"), "{text}");
        assert_eq!(provider.list_owned().await.unwrap(), []);
    }
    assert!(!lab.path("commands").exists(), "nothing was run");
    lab.check_clean("another host key");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_file_that_others_can_read_is_refused() {
    let Some(lab) = SshLab::open(&["a"]).await else { return };
    let key = lab.path("client");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let provider = lab.provider().await;
    let refused = provider.acquire(&operation("op-1"), &wanted()).await.unwrap_err().to_string();
    assert!(refused.contains("chmod 600") && refused.contains("0640"), "{refused}");
    assert!(!refused.contains("PRIVATE"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_is_in_one_file_of_one_machine() {
    let Some(lab) = SshLab::open(&["a", "b"]).await else { return };
    let provider = lab.provider().await;
    let first = operation("op-1");
    provider.acquire(&first, &wanted()).await.unwrap();
    until_up(&lab, &provider, &first).await;
    let file = lab.machine("a").join("join-token");
    let token = fs::read_to_string(&file).unwrap();
    assert!(!token.is_empty());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    for (name, text) in [
        ("commands", fs::read_to_string(lab.path("commands")).unwrap()),
        ("log of sshd", fs::read_to_string(lab.path("sshd.log")).unwrap()),
        ("configuration", fs::read_to_string(lab.machine("a").join("node.toml")).unwrap()),
    ] {
        assert!(!text.contains(&token), "{name}: {text}");
    }
    let again = lab.join_by(&token, 9).await.unwrap_err();
    assert!(!again.message().contains(&token), "good for one certificate: {again}");
    let config = fs::read_to_string(lab.machine("a").join("node.toml")).unwrap();
    let config: toml::Table = config.parse().unwrap();
    assert_eq!(config["join"]["controller"].as_str(), Some("edge.example:8443"));
    assert_eq!(config["node"]["kubernetes"].as_bool(), Some(true));
    provider.release(&first, Wipe::Reset).await.unwrap();
    lab.check_clean("a token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_another_controller_is_left_alone() {
    let Some(lab) = SshLab::open(&["a", "b"]).await else { return };
    fs::create_dir_all(lab.machine("a")).unwrap();
    fs::write(lab.machine("a").join("claim"), "somebody-else op-1 demo\n").unwrap();
    let provider = lab.provider().await;
    let acquired = provider.acquire(&operation("op-1"), &wanted()).await.unwrap();
    assert_eq!(acquired.id, "b");
    let none = provider.acquire(&operation("op-2"), &wanted()).await.unwrap_err();
    assert_eq!(none.to_string(), "machine \"a\" is set aside for another operation");
    assert_eq!(provider.list_owned().await.unwrap().len(), 1);
    provider.release(&operation("op-1"), Wipe::Reset).await.unwrap();
    let left = fs::read_to_string(lab.machine("a").join("claim")).unwrap();
    assert_eq!(left, "somebody-else op-1 demo\n");
    fs::remove_dir_all(lab.machine("a")).unwrap();
    lab.check_clean("another controller");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_in_quarantine_is_neither_offered_nor_given() {
    let Some(lab) = SshLab::open(&["a", "b"]).await else { return };
    let provider = lab.provider().await;
    assert!(provider.exclude(["a".to_owned()].into()), "its machines come back");
    let offers = provider.offers("").await.unwrap();
    assert_eq!((offers[0].total, offers[0].free), (Some(1), Some(1)));
    let acquired = provider.acquire(&operation("op-1"), &wanted()).await.unwrap();
    assert_eq!(acquired.id, "b");
    let none = provider.acquire(&operation("op-2"), &wanted()).await.unwrap_err();
    assert_eq!(none.to_string(), "no machine is free");
    provider.exclude(std::collections::BTreeSet::new());
    let released = provider.acquire(&operation("op-2"), &wanted()).await.unwrap();
    assert_eq!(released.id, "a");
    for name in ["op-1", "op-2"] {
        assert!(provider.release(&operation(name), Wipe::Reset).await.unwrap());
    }
    lab.check_clean("a quarantine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_the_store_forgot_is_found_and_given_back() {
    let Some(lab) = SshLab::open(&["a", "b"]).await else { return };
    let provider = lab.provider().await;
    let first = operation("op-1");
    provider.acquire(&first, &wanted()).await.unwrap();
    until_up(&lab, &provider, &first).await;
    drop(provider);
    let rows: Arc<Table<Claim>> = Table::open(Arc::clone(&lab.store)).await.unwrap();
    rows.delete("a").await.unwrap();
    let provider = lab.provider().await;
    let other = provider.acquire(&operation("op-2"), &wanted()).await.unwrap();
    assert_eq!(other.id, "b", "the machine itself says whose it is");
    let owned = provider.list_owned().await.unwrap();
    assert!(owned.iter().any(|one| one.operation == first && one.id == "a"), "{owned:?}");
    assert!(provider.release(&first, Wipe::Reset).await.unwrap());
    assert!(provider.release(&operation("op-2"), Wipe::Reset).await.unwrap());
    lab.check_clean("a row that was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ended_is_started_again() {
    let Some(lab) = SshLab::open(&["a"]).await else { return };
    let provider = lab.provider().await;
    let first = operation("op-1");
    provider.acquire(&first, &wanted()).await.unwrap();
    until_up(&lab, &provider, &first).await;
    let before = ["supervisor.pid", "agent.pid"].map(|file| lab.process("a", file).unwrap());
    for pid in before {
        std::process::Command::new("kill").arg("-9").arg(pid.to_string()).status().unwrap();
    }
    provider.maintain().await.unwrap();
    let now = lab.process("a", "supervisor.pid").unwrap();
    assert_ne!(now, before[0]);
    provider.release(&first, Wipe::Reset).await.unwrap();
    lab.check_clean("an agent that ended");
}

#[test]
fn an_inventory_that_is_wrong_names_the_field() {
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    let good = SshMachine {
        address: "192.0.2.1".into(),
        host_keys: vec![format!("192.0.2.1 {key} comment")],
        ..SshMachine::default()
    };
    let check = |name: &str, change: fn(&mut SshMachine)| {
        let mut machine = good.clone();
        change(&mut machine);
        let options = SshOptions {
            machines: [(name.to_owned(), machine)].into(),
            key_file: Some("/etc/selvage/ssh.key".into()),
            ..SshOptions::default()
        };
        options.validate()
    };
    assert_eq!(check("a", |_| {}), Ok(()));
    type Change = fn(&mut SshMachine);
    let wrong: [(&str, Change, &str); 7] = [
        ("a/../b", |_| {}, "kaas.ssh.machines: \"a/../b\""),
        ("a", |m| m.address = "a b".into(), "kaas.ssh.machines.a.address"),
        ("a", |m| m.host_keys.clear(), "kaas.ssh.machines.a.host_keys"),
        ("a", |m| m.host_keys = vec!["SHA256:x".into()], "kaas.ssh.machines.a.host_keys"),
        ("a", |m| m.host_keys[0].insert_str(0, "@revoked "), "kaas.ssh.machines.a.host_keys"),
        ("a", |m| m.directory = "/var/../etc".into(), "kaas.ssh.machines.a.directory"),
        ("a", |m| m.user = "root; reboot".into(), "kaas.ssh.machines.a.user"),
    ];
    for (name, change, field) in wrong {
        let error = check(name, change).unwrap_err();
        assert!(error.starts_with(field), "{error}");
    }
    let twice = SshOptions {
        machines: [("a".to_owned(), good.clone()), ("b".to_owned(), good)].into(),
        key_file: Some("/etc/selvage/ssh.key".into()),
        ..SshOptions::default()
    };
    assert!(twice.validate().unwrap_err().contains("machine \"a\" too"));
    assert!(SshOptions::default().validate().unwrap_err().contains("at least one machine"));
}
