use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

use crate::{
    fake::{self, API_TOKEN, Authority, PASSWORD, Running, ServerState},
    harness::Person,
};

async fn person(server: &Running, ca: &Authority) -> Person {
    let mut person = Person::new();
    let login = ["login", &server.endpoint, "--ca-sha256", &ca.sha256];
    person.answering(&["admin", PASSWORD]).run(&login).await.good();
    person
}

#[tokio::test]
async fn a_token_is_shown_once_listed_and_ended() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = person(&server, &ca).await;
    let line = ["token", "create", "ci", "--role", "developer:acme", "--ttl", "2h"];
    let made = person.run(&[&line[..], &["--method", "edgeproto.AppInstApi/*"]].concat()).await;
    assert!(made.out.ends_with(&format!("\ntoken  {API_TOKEN}\n")), "{}", made.out);
    made.good();
    let listed = person.run(&["token", "list"]).await.good();
    assert!(listed.contains("ci    admin     developer:acme  edgeproto.AppInstApi/*"), "{listed}");
    assert!(!listed.contains("canary"), "{listed}");

    assert!(person.misspelt(&["token", "create", "ci"]).contains("--role"));
    let (code, stderr) = person.run(&["token", "delete", "cii"]).await.bad();
    assert_eq!(code, 4);
    assert!(stderr.contains("did you mean ci"), "{stderr}");
    person.run(&["token", "delete", "ci"]).await.good();
    assert!(server.state.credentials.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_certificate_is_got_and_its_key_stays_here() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = person(&server, &ca).await;
    let out = person.dir.path().join("own");
    let place = out.display().to_string();
    let line = ["user", "cert", "create", "laptop", "--out", &place];
    person.run(&line).await.good();
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("person.key"), mode("person.crt"), mode("ca.crt")], [0o600, 0o644, 0o644]);
    // Without a role it has all of its owner's.
    let grants = server.state.credentials.lock().unwrap()[0].grants.clone();
    assert_eq!(grants[0].role, "admin");
    let (code, stderr) = person.run(&line).await.bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("--force"), "{stderr}");
    assert!(person.run(&["user", "cert", "list"]).await.good().contains("laptop"));
    assert!(!person.run(&["token", "list"]).await.good().contains("laptop"));
    person.run(&["user", "cert", "block", "laptop"]).await.good();
    assert!(server.state.credentials.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_certificate_for_another_key_is_not_kept() {
    let ca = Arc::new(Authority::new());
    let state = ServerState { swaps_keys: true, ..ServerState::default() };
    let server = fake::https(state, &ca).await;
    let mut person = person(&server, &ca).await;
    let out = person.dir.path().join("own");
    let line = ["user", "cert", "create", "laptop", "--out", &out.display().to_string()];
    let (_, stderr) = person.run(&line).await.bad();
    assert!(stderr.contains("another key"), "{stderr}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}
