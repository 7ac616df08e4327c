use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

use selvage_api::{Code, selvage::identity::LoginProvider};

use crate::{
    fake::{self, Authority, PASSWORD, Running, ServerState, TOKEN},
    harness::{Outcome, Person},
};

#[tokio::test]
async fn login_whoami_and_logout_over_tls() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let ca_file = person.file("ca.pem", &ca.pem).display().to_string();
    let password = person.file("password", &format!("{PASSWORD}\n")).display().to_string();
    let outcome = person
        .run(&[
            "login",
            &server.endpoint,
            "--ca",
            &ca_file,
            "-u",
            "admin",
            "--password-file",
            &password,
        ])
        .await;
    assert!(outcome.err.contains(&format!("Logged in to {} as admin.", server.endpoint)));
    assert_eq!(outcome.good(), "", "stdout is for data");

    // The CA and the token are remembered: neither file is needed again.
    fs::remove_file(ca_file).unwrap();
    let who = person.run(&["whoami"]).await.good();
    let stderr = "name            admin\nkind            user\ngrants          admin\n\
                expires         -\nmethods         -\nfirst_password  false\nidle_end        -\n";
    assert_eq!(who, stderr);

    person.run(&["logout"]).await.good();
    assert!(*server.state.logged_out.lock().unwrap());
    let (code, stderr) = person.run(&["whoami"]).await.bad();
    assert_eq!(code, 6);
    assert_eq!(
        stderr,
        "error: no session goes with these credentials\n\
         hint: you are not logged in: run `selvage login`\n\
         hint: `selvage explain UNAUTHENTICATED` says more\n"
    );
    let outcome = person.run(&["logout"]).await;
    assert!(outcome.err.starts_with("You are not logged in"), "{}", outcome.err);
    outcome.good();
}

#[tokio::test]
async fn an_ended_session_is_distinguished_from_none() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    person
        .answering(&["admin", PASSWORD])
        .run(&["login", &server.endpoint, "--ca-sha256", &ca.sha256])
        .await
        .good();
    *server.state.logged_out.lock().unwrap() = true;
    let (code, stderr) = person.run(&["user", "list"]).await.bad();
    assert_eq!(code, 6);
    assert!(stderr.contains("your session has ended or is not known there: run `selvage login`"));
}

#[tokio::test]
async fn a_fingerprint_is_believed_only_if_it_fits() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let other = "00".repeat(32);
    let (code, stderr) =
        person.answering(&[]).run(&["login", &server.endpoint, "--ca-sha256", &other]).await.bad();
    assert_eq!(code, 6);
    assert!(stderr.contains(&format!("shows no CA with the fingerprint {other}")), "{stderr}");
    assert!(stderr.contains(&ca.sha256), "{stderr}");
    assert!(!person.config_file().exists());

    let (code, _) = person.run(&["login", &server.endpoint, "--ca-sha256", "12"]).await.bad();
    assert_eq!(code, 3);
}

#[tokio::test]
async fn an_unknown_server_is_trusted_only_by_a_yes() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();

    let (code, stderr) = person.run(&["login", &server.endpoint]).await.bad();
    assert_eq!(code, 8, "{stderr}");
    assert!(stderr.contains("--ca-sha256 HEX"), "{stderr}");

    let (code, stderr) = person.answering(&["n"]).run(&["login", &server.endpoint]).await.bad();
    assert_eq!(code, 12);
    assert!(stderr.contains(&ca.sha256) && stderr.contains("CN=test CA"), "{stderr}");
    assert!(!person.config_file().exists());

    person.answering(&["yes", "admin", PASSWORD]).run(&["login", &server.endpoint]).await.good();
    // Known now: only the password is asked for, the name is offered.
    person.answering(&["", PASSWORD]).run(&["login"]).await.good();
    person.run(&["whoami"]).await.good();
}

#[tokio::test]
async fn a_new_ca_at_a_known_address_is_refused() {
    let (ca, other) = (Arc::new(Authority::new()), Arc::new(Authority::new()));
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let wrong = person.file("other.pem", &other.pem).display().to_string();
    for line in [
        vec!["whoami", "--endpoint", &server.endpoint, "--ca", &wrong],
        vec!["login", &server.endpoint, "--ca", &wrong],
    ] {
        let (code, stderr) = person.run(&line).await.bad();
        assert_eq!(code, 6);
        assert!(stderr.contains("signed by a CA that is not trusted here"), "{stderr}");
        assert!(stderr.contains("selvage login --ca-sha256 HEX"), "{stderr}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_not_answered_with_log_in() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let (code, stderr) = person
        .answering(&["admin", "wrong-canary"])
        .run(&["login", &server.endpoint, "--ca-sha256", &ca.sha256])
        .await
        .bad();
    assert_eq!(code, 6);
    assert!(
        stderr.contains("error: wrong name or password\nhint: check the name (admin)"),
        "{stderr}"
    );
    assert!(!stderr.contains("canary"));
    assert!(!person.config_file().exists());
}

#[tokio::test]
async fn the_ready_file_is_all_a_script_needs() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let ready = serde_json::json!({
        "endpoint": server.endpoint,
        "ca": person.file("ca.pem", &ca.pem),
        "admin": {"username": "admin", "password_file": person.file("password", PASSWORD)},
        "sockets": {"lvmd": "/nowhere"},
    });
    let ready = person.file("ready.json", &ready.to_string()).display().to_string();
    person.run(&["--context", "lab", "login", "--ready-file", &ready]).await.good();
    assert!(person.run(&["context", "list"]).await.good().contains("lab"));
    person.run(&["status"]).await.good();
}

#[tokio::test]
async fn a_first_password_that_is_gone_is_named_with_the_ready_file() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let gone = person.dir.path().join("first-password");
    let ready = serde_json::json!({
        "endpoint": server.endpoint,
        "ca": person.file("ca.pem", &ca.pem),
        "admin": {"username": "admin", "password_file": gone},
    });
    let ready = person.file("ready.json", &ready.to_string()).display().to_string();
    let (_, stderr) = person.run(&["login", "--ready-file", &ready]).await.bad();
    let said = format!("{ready} names the password file {}, which is gone", gone.display());
    assert!(stderr.contains(&said) && stderr.contains("hint: --username NAME"), "{stderr}");
    assert!(!person.config_file().exists());
    let line = ["login", "--ready-file", &ready, "--username", "admin"];
    person.answering(&[PASSWORD]).run(&line).await.good();
}

#[tokio::test]
async fn events_where_no_dashboard_runs_are_explained() {
    let server = fake::http().await;
    let mut person = Person::new();
    person.endpoint = Some(server.endpoint.clone());
    let (code, stderr) = person.run(&["events"]).await.bad();
    assert_eq!(code, Code::Unimplemented.exit());
    assert!(stderr.contains("the dashboard records events, and none runs"), "{stderr}");
}

#[tokio::test]
async fn a_password_can_come_through_a_pipe() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let line = [
        "login",
        &server.endpoint,
        "--ca-sha256",
        &ca.sha256,
        "-u",
        "admin",
        "--password-file",
        "-",
    ];
    person.piping(PASSWORD).run(&line).await.good();
    let (code, _) = person.piping("").run(&line).await.bad();
    assert_eq!(code, 3);
}

#[tokio::test]
async fn servers_that_ask_for_no_login_are_just_remembered() {
    let mut person = Person::new();
    let http = fake::http().await;
    person.run(&["login", &http.endpoint]).await.good();
    assert!(person.run(&["whoami"]).await.good().contains("insecure"));

    let unix = fake::unix(&person.dir.path().join("s.sock"));
    person.run(&["login", &unix.endpoint]).await.good();
    assert!(person.run(&["whoami", "-o", "json"]).await.good().contains(r#""name":"everybody""#));
    let list = person.run(&["context", "list", "-o", "json"]).await.good();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list[0]["insecure"], true);
    assert_eq!((&list[1]["name"], &list[1]["current"]), (&"s".into(), &true.into()));
}

#[tokio::test]
async fn credentials_others_can_read_stop_every_command() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let line = ["login", &server.endpoint, "--ca-sha256", &ca.sha256];
    person.answering(&["admin", PASSWORD]).run(&line).await.good();
    let file = person.dir.path().join("config/credentials.toml");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, stderr) = person.run(&["whoami"]).await.bad();
    assert_eq!(code, 8);
    assert!(
        stderr.contains("others may read it (mode 644)") && stderr.contains("chmod 600"),
        "{stderr}"
    );
    assert!(!stderr.contains(TOKEN));
}

#[tokio::test]
async fn a_token_stays_with_the_server_it_is_for() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let line = ["--context", "home", "login", &server.endpoint, "--ca-sha256", &ca.sha256];
    person.answering(&["admin", PASSWORD]).run(&line).await.good();
    let other = fake::https(ServerState::default(), &ca).await;
    let line = ["--context", "home", "--endpoint", &other.endpoint, "whoami"];
    let (code, stderr) = person.run(&line).await.bad();
    assert_eq!(code, 6);
    assert!(stderr.contains("you are not logged in"), "{stderr}");

    person.env.push(("SELVAGE_TOKEN".into(), TOKEN.into()));
    person.run(&line).await.good();
    // Ending the session of a token brought along leaves the kept one alone.
    person.run(&[&line[..4], &["logout"]].concat()).await.good();
    let kept = fs::read_to_string(person.dir.path().join("config/credentials.toml")).unwrap();
    assert!(kept.contains("[logins.home]"), "{kept}");
    let (code, stderr) = person.run(&["--endpoint", "http://192.0.2.1:1", "whoami"]).await.bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("in clear text") && !stderr.contains(TOKEN), "{stderr}");
}

/// A browser that comes back to the port it was given; before it, strangers.
const BROWSER: &str = r#"#!/bin/bash
port=${1##*port=}; port=${port%%&*}
state=${1##*state=}
visit() { exec 3<>"/dev/tcp/127.0.0.1/$port"; printf 'GET %s HTTP/1.1\r\n\r\n' "$1" >&3; cat <&3; }
visit '/favicon.ico'
visit '/?code=stolen&state=other'
visit "/?ANSWER&state=$state"
"#;

async fn through_a_browser(answer: &str, line: &[&str]) -> (Outcome, Running, Person) {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    for name in ["corp", "lab"] {
        server.state.providers.lock().unwrap().push(LoginProvider {
            name: name.into(),
            label: "Corporate".into(),
            login_url: format!("https://edge.example/auth/oidc/{name}/login"),
        });
    }
    let mut person = Person::new();
    let script = person.file("browser", &BROWSER.replace("ANSWER", answer));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    person.env.push(("BROWSER".into(), script.display().to_string()));
    let login = ["login", &server.endpoint, "--ca-sha256", &ca.sha256];
    let outcome = person.run(&[&login[..], line].concat()).await;
    (outcome, server, person)
}

#[tokio::test]
async fn a_login_through_a_browser() {
    let (outcome, server, mut person) =
        through_a_browser("code=code-canary-1", &["--oidc", "corp"]).await;
    assert!(outcome.err.contains("as anna."), "{}", outcome.err);
    let url = outcome.err.lines().find(|line| line.contains("https://edge.example")).unwrap();
    let url = url::Url::parse(url.trim()).unwrap();
    assert_eq!(url.path(), "/auth/oidc/corp/login");
    // The server is shown the verifier in the end, the browser its digest.
    let verifier = server.state.verifier.lock().unwrap().clone();
    assert!(!outcome.err.contains(&verifier) && !outcome.err.contains("canary"));
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&verifier);
    let digest = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, digest);
    assert!(url.query_pairs().any(|(name, value)| name == "challenge" && value == digest));
    outcome.good();
    person.run(&["whoami"]).await.good();
}

#[tokio::test]
async fn a_login_through_a_browser_that_fails() {
    let (outcome, _, _) = through_a_browser("error=not_allowed", &["--oidc", "corp"]).await;
    let (code, stderr) = outcome.bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("not_allowed"), "{stderr}");
    let (outcome, _, _) = through_a_browser("code=wrong", &["--oidc", "corp"]).await;
    assert_eq!(outcome.bad().0, 6);
    let (outcome, _, _) = through_a_browser("", &["--oidc", "crop"]).await;
    let (code, stderr) = outcome.bad();
    assert_eq!(code, 4);
    assert!(stderr.contains("did you mean corp"), "{stderr}");
    let (outcome, _, _) = through_a_browser("", &["--oidc"]).await;
    assert!(outcome.bad().1.contains("--oidc corp or --oidc lab"));
}
