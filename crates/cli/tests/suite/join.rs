use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

use crate::{
    fake::{self, Authority, JOIN_TOKEN, PASSWORD, ServerState},
    harness::Person,
};

#[tokio::test]
async fn a_machine_gets_its_certificate_and_is_known_by_it() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut admin = Person::new();
    let login = ["login", &server.endpoint, "--ca-sha256", &ca.sha256];
    admin.answering(&["admin", PASSWORD]).run(&login).await.good();
    let line = ["join-token", "create", "node/rack3-7", "--ttl", "2h", "-o", "json"];
    let token: serde_json::Value = serde_json::from_str(&admin.run(&line).await.good()).unwrap();
    assert_eq!(token["expires"], "2023-11-14T22:13:20Z");
    let command = token["command"].as_str().unwrap().to_owned();
    assert_eq!(
        command,
        format!("selvage join {} --ca-sha256 {} --out /etc/selvage", server.endpoint, ca.sha256)
    );

    // The command as printed, with the token in the environment.
    let mut machine = Person::new();
    machine.env.push(("SELVAGE_JOIN_TOKEN".into(), token["token"].as_str().unwrap().into()));
    let out = machine.dir.path().join("pki");
    let command = command.replace("/etc/selvage", &out.display().to_string());
    let line: Vec<&str> = command.split(' ').skip(1).collect();
    let stderr = machine.run(&line).await.good();
    assert!(stderr.contains("machine      node/rack3-7\n"), "{stderr}");
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("machine.key"), mode("machine.crt"), mode("ca.crt")], [0o600, 0o644, 0o644]);
    assert_eq!(fs::read_to_string(out.join("ca.crt")).unwrap(), ca.pem);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 3, "nothing is left beside");

    let path = |name: &str| out.join(name).display().to_string();
    let (cert, key, ca_file) = (path("machine.crt"), path("machine.key"), path("ca.crt"));
    let who = [
        "whoami",
        "--endpoint",
        &server.endpoint,
        "--ca",
        &ca_file,
        "--cert",
        &cert,
        "--key",
        &key,
    ];
    assert!(machine.run(&who).await.good().contains("node/rack3-7"));

    let before = fs::read(out.join("machine.key")).unwrap();
    let (code, stderr) = machine.run(&line).await.bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("is there already") && stderr.contains("--force"), "{stderr}");
    assert_eq!(fs::read(out.join("machine.key")).unwrap(), before);
    machine.run(&[&line[..], &["--force"]].concat()).await.good();
    assert_ne!(fs::read(out.join("machine.key")).unwrap(), before);
}

#[tokio::test]
async fn a_machine_does_not_send_its_token_to_an_unknown_server() {
    let (ca, other) = (Arc::new(Authority::new()), Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut machine = Person::new();
    let out = machine.dir.path().join("pki");
    let dir = out.display().to_string();
    let token = machine.file("token", JOIN_TOKEN).display().to_string();
    let join = ["join", &server.endpoint, "--out", &dir, "--token-file", &token];

    let pinned = [&join[..], &["--ca-sha256", &other.sha256]].concat();
    let (code, stderr) = machine.run(&pinned).await.bad();
    assert_eq!(code, 6);
    assert!(
        stderr.contains("shows no CA with the fingerprint") && !stderr.contains(JOIN_TOKEN),
        "{stderr}"
    );
    let (code, stderr) = machine.run(&join).await.bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("--ca-sha256"), "{stderr}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

#[tokio::test]
async fn a_bad_token_or_a_bad_answer_leaves_nothing() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState { swaps_keys: true, ..ServerState::default() }, &ca).await;
    let mut machine = Person::new();
    let out = machine.dir.path().join("pki");
    let dir = out.display().to_string();
    let join =
        ["join", &server.endpoint, "--out", &dir, "--ca-sha256", &ca.sha256, "--token-file", "-"];
    let (code, stderr) = machine.piping("used-up").run(&join).await.bad();
    assert_eq!(code, 6);
    assert!(stderr.contains("make a new one with `selvage join-token create`"), "{stderr}");
    let (code, stderr) = machine.piping(JOIN_TOKEN).run(&join).await.bad();
    assert_eq!(code, 16);
    assert!(stderr.contains("the certificate is for another key"), "{stderr}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}
