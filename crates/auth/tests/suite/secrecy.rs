//! Secrets appear nowhere but where they were asked for.

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use selvage_api::selvage::identity::{
    AddUserRequest, CreateJoinTokenRequest, JoinRequest, SetPasswordRequest,
};
use selvage_auth::GeneratedPassword;
use selvage_kit::identity::{Authenticator, Credentials, Secret};
use selvage_store::{KeyRange, RangeRequest};
use tracing::level_filters::LevelFilter;

use crate::harness::{HERE, Harness, anonymous, as_root, csr, user};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn capture() -> Log {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    log
}

#[tokio::test]
async fn neither_log_nor_error_nor_store_holds_a_secret() {
    let log = capture();
    let h = Harness::new().await;
    let mut said = Vec::new();
    let mut secrets: Vec<String> =
        ["canary-first-1", "canary-wrong-2", "canary-second-3"].map(str::to_owned).to_vec();

    let password = GeneratedPassword::generate();
    assert!(h.auth.bootstrap_admin(&password).await.unwrap());
    said.push(format!("{password:?} {:?}", h.auth));
    secrets.push(password.expose().to_owned());
    let add = AddUserRequest { user: Some(user("anna", &[])), password: secrets[0].clone() };
    h.identities().add_user(as_root(add)).await.unwrap();
    let add = AddUserRequest { user: Some(user("bert", &[])), password: String::new() };
    let made = h.identities().add_user(as_root(add)).await.unwrap().into_inner();
    secrets.push(made.generated_password);
    let twice = AddUserRequest { user: Some(user("anna", &[])), password: secrets[1].clone() };
    said.push(format!("{:?}", h.identities().add_user(as_root(twice)).await.unwrap_err()));

    said.push(format!("{:?}", h.login_from(HERE, "anna", &secrets[1]).await.unwrap_err()));
    let token = h.login_from(HERE, "anna", &secrets[0]).await.unwrap().into_inner().token;
    let credentials = Credentials::Bearer(Secret::new(token.clone()));
    said.push(format!("{:?}", h.auth.authenticate(&credentials).await.unwrap()));
    for current in [1, 0] {
        let change = SetPasswordRequest {
            username: String::new(),
            current_password: secrets[current].clone(),
            new_password: secrets[2].clone(),
        };
        let outcome = h.identities().set_password(h.with_token(&token, change).await).await;
        said.push(format!("{outcome:?}"));
    }
    secrets.push(token);

    let ask =
        CreateJoinTokenRequest { machine: "node/n1".into(), ttl_seconds: 60, names: Vec::new() };
    let join_token = h.identities().create_join_token(as_root(ask)).await.unwrap();
    let join_token = join_token.into_inner().token;
    for _ in 0..2 {
        let join = JoinRequest { token: join_token.clone(), csr: csr() };
        said.push(format!("{:?}", h.identities().join(anonymous(HERE, join)).await));
    }
    secrets.push(join_token);

    let dump = h.store.range(RangeRequest::new(KeyRange::All)).await.unwrap();
    let mut bytes = Vec::new();
    for item in dump.items {
        bytes.extend_from_slice(&item.key);
        bytes.extend_from_slice(&item.value);
    }
    let log = log.0.lock().clone();
    for (place, content) in
        [("store", &bytes), ("log", &log), ("answers", &said.concat().into_bytes())]
    {
        let content = String::from_utf8_lossy(content);
        assert!(content.contains("anna"), "nothing of interest in {place}");
        for secret in &secrets {
            assert!(!content.contains(secret.as_str()), "{place} holds {secret}: {content}");
        }
    }
    let log = String::from_utf8_lossy(&log);
    for line in ["logged in", "login refused", "user.password", "machine.join"] {
        assert!(log.lines().any(|l| l.contains(" audit: ") && l.contains(line)), "{line}: {log}");
    }
}
