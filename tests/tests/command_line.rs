//! The command as people use it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use selvage_api::selvage::identity::{
    RenewRequest, identity_service_client::IdentityServiceClient,
};
use selvage_kit::pki;
use selvage_tests::{Client, Selvage, process::Cli};
use tonic::Code;

#[test]
fn login_status_call_logout() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let status = cli.json(&["status", "-o", "json"]);
    assert_eq!(status["store"], "embedded");
    let who = cli.json(&["call", "selvage.identity.IdentityService/WhoAmI", "{}", "-o", "json"]);
    assert_eq!(who["name"], "admin");
    cli.ok(&["logout"]);
    let refused = cli.run(&["call", "selvage.identity.IdentityService/WhoAmI"]);
    assert_eq!(refused.code, i32::from(selvage_api::Code::Unauthenticated.exit()));
    assert!(refused.stderr.contains("selvage login"), "{refused:?}");
}

#[test]
fn every_method_can_be_called_by_name() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let unimplemented = i32::from(selvage_api::Code::Unimplemented.exit());
    // One method of each service; the access suite calls them all.
    let mut services: Vec<&str> = Vec::new();
    for method in selvage_api::methods() {
        let streams = method.client_streaming || method.server_streaming;
        if services.contains(&method.service.as_str()) || streams {
            continue;
        }
        services.push(&method.service);
        if ["auth", "system", "controller", "dme", "node", "lvmd"].contains(&method.part) {
            continue;
        }
        let printed = cli.run(&["call", method.path.trim_start_matches('/')]);
        assert_ne!(printed.code, unimplemented, "{}: {printed:?}", method.path);
        assert!(!printed.stderr.contains("no method"), "{}: {printed:?}", method.path);
    }
}

/// Two ways to say which machines are meant, one of them in the environment or
/// behind the command, are refused before anybody is called: nobody listens there.
#[test]
fn selectors_of_machines_that_contradict_each_other_are_refused() {
    let of = |variable: Option<&str>, line: &[&str]| {
        let mut command = selvage_tests::process::command();
        command.args(["--endpoint", "http://127.0.0.1:1"]).args(line);
        command.envs(variable.map(|nodes| ("SELVAGE_NODES", nodes)));
        let output = command.output().unwrap();
        assert_ne!(output.status.code(), Some(0));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (variable, line) in [
        (None, "node -l rack=3 restart x -n rack9"),
        (Some("rack9"), "node -l rack=3 restart x"),
        (Some("rack9"), "node restart x --selector rack=3"),
    ] {
        let suggested = of(variable, &line.split(' ').collect::<Vec<_>>());
        let refused = suggested.contains("give one") || suggested.contains("cannot be used with");
        assert!(refused && !suggested.contains("nobody answers"), "{line}: {suggested}");
    }
}

#[test]
fn typos_get_suggestions() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let printed = cli.run(&["call", "edgeproto.FlavourApi/CreateFlavor"]);
    assert_ne!(printed.code, 0);
    assert!(printed.stderr.contains("edgeproto.FlavorApi"), "{printed:?}");
    let printed = cli.run(&["call", "edgeproto.FlavorApi/CreateFlavor", r#"{"vcpu": 1}"#]);
    assert!(printed.stderr.contains("vcpus"), "{printed:?}");
    let printed = cli.run(&["statsu"]);
    assert_eq!(printed.code, 2);
    assert!(printed.stderr.contains("status"), "{printed:?}");
    let printed = cli.run(&["explain", "NOT_FUOND"]);
    assert!(printed.stderr.contains("NOT_FOUND"), "{printed:?}");
}

#[tokio::test]
async fn users_come_and_go() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let password = cli.home().join("password");
    std::fs::write(&password, "a long enough password\n").unwrap();
    let file = password.to_str().unwrap();
    cli.ok(&["user", "add", "dora", "--role", "developer:Acme", "--password-file", file]);
    assert!(cli.ok(&["user", "list"]).contains("dora"));
    let dora = Client::login(&selvage, "dora", "a long enough password").await.unwrap();
    assert_eq!(
        dora.code("/selvage.identity.IdentityService/ListUsers", &[]).await,
        Code::PermissionDenied
    );
    cli.ok(&["user", "remove", "dora", "--yes"]);
    let gone = dora.code("/selvage.identity.IdentityService/WhoAmI", &[]).await;
    assert_eq!(gone, Code::Unauthenticated, "removing a user ends their sessions");
}

#[tokio::test]
async fn a_machine_joins_with_a_token_once_and_renews() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let made = cli.json(&["join-token", "create", "node/rack3-7", "-o", "json"]);
    let token = made["token"].as_str().unwrap();
    let sha256 = made["ca_sha256"].as_str().or(made["caSha256"].as_str()).unwrap();
    let out = cli.home().join("machine");
    let join = |sha256: &str| {
        let out = out.to_str().unwrap();
        let args =
            ["join", selvage.endpoint(), "--token-file", "-", "--ca-sha256", sha256, "--out", out];
        cli.run_with(&args, &[], Some(token))
    };
    let wrong = join(&"0".repeat(64));
    assert_ne!(wrong.code, 0, "another CA is not trusted: {wrong:?}");
    let joined = join(sha256);
    assert_eq!(joined.code, 0, "{joined:?}");
    assert_ne!(join(sha256).code, 0, "a token is good once");

    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    let machine = Client::machine(&selvage, &read("machine.crt"), &read("machine.key")).await;
    let (replies, code, _) = machine.raw("/selvage.identity.IdentityService/WhoAmI", &[]).await;
    assert_eq!(code, Code::Ok);
    assert!(String::from_utf8_lossy(&replies[0]).contains("node/rack3-7"));
    let denied = machine.code("/selvage.identity.IdentityService/ListUsers", &[]).await;
    assert_eq!(denied, Code::PermissionDenied);

    let key = pki::KeyRequest::new().unwrap();
    let mut identity = IdentityServiceClient::new(machine.channel.clone());
    let renewed = identity.renew(RenewRequest { csr: key.csr_pem().into() }).await.unwrap();
    let renewed = renewed.into_inner();
    assert_eq!(renewed.machine, "node/rack3-7");
    let path = cli.home().join("renewed.pem");
    let kept = pki::RotatingIdentity::create(&path, &key, &renewed.certificate).unwrap();
    assert_eq!(kept.machine().to_string(), "node/rack3-7");
    let person = Client::admin(&selvage).await;
    let mut identity = IdentityServiceClient::new(person.channel.clone());
    let refused = identity.renew(person.request(RenewRequest { csr: key.csr_pem().into() })).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied, "a person is no machine");
}

#[test]
fn a_part_runs_alone() {
    let selvage = Selvage::part("lvmd", &[]);
    let cli = Cli::admin_of(&selvage);
    let status = cli.json(&["status", "-o", "json"]);
    let state = |name: &str| {
        let parts = status["parts"].as_array().unwrap();
        parts.iter().find(|part| part["name"] == name).unwrap()["state"].clone()
    };
    assert_eq!(state("controller"), "elsewhere");
    assert_ne!(state("lvmd"), "elsewhere");
    let socket = format!("unix://{}", selvage.ready()["sockets"]["lvmd"].as_str().unwrap());
    let stranger = Cli::new();
    let who = stranger.json(&[
        "call",
        "selvage.identity.IdentityService/WhoAmI",
        "--endpoint",
        &socket,
        "-o",
        "json",
    ]);
    assert_eq!(who["kind"], "local");
}

#[test]
fn secrets_do_not_appear_in_the_log() {
    let selvage = Selvage::up(&["--log", "trace"]);
    let cli = Cli::admin_of(&selvage);
    let canary = "canary-passw0rd-3141592653";
    let file = cli.home().join("password");
    std::fs::write(&file, canary).unwrap();
    let file = file.to_str().unwrap();
    cli.ok(&["user", "add", "dora", "--role", "viewer", "--password-file", file]);
    let made = cli.json(&["join-token", "create", "node/n1", "-o", "json"]);
    let token = made["token"].as_str().unwrap().to_owned();
    let credentials = find_token(cli.home());
    let log = selvage.log();
    assert!(log.contains("audit"), "{log}");
    // The first administrator's password is printed once, on purpose.
    for secret in [canary, token.as_str(), credentials.as_str()] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
}

/// The session token that `selvage login` kept.
fn find_token(home: &std::path::Path) -> String {
    let text = std::fs::read_to_string(home.join(".config/selvage/credentials.toml")).unwrap();
    let at = text.find("slv_").unwrap();
    text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect()
}

#[test]
fn completion_and_man_pages_are_written() {
    let cli = Cli::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(cli.ok(&["completion", shell]).contains("selvage"), "{shell}");
    }
    let man = cli.home().join("man");
    cli.ok(&["man", man.to_str().unwrap()]);
    assert!(man.join("selvage.1").exists());
    assert!(man.join("selvage-up.1").exists());
}

#[test]
fn explain_knows_every_code() {
    let cli = Cli::new();
    for code in selvage_api::code::ALL {
        assert!(cli.ok(&["explain", code.name()]).contains(code.name()));
    }
}

#[test]
fn a_certificate_that_is_shown_counts_more_than_a_login() {
    let selvage = Selvage::up(&[]);
    let cli = Cli::admin_of(&selvage);
    let made = cli.json(&["join-token", "create", "node/n1", "-o", "json"]);
    let (token, sha256) = (made["token"].as_str().unwrap(), made["ca_sha256"].as_str().unwrap());
    let out = cli.home().join("machine");
    let out = out.to_str().unwrap();
    let args =
        ["join", selvage.endpoint(), "--token-file", "-", "--ca-sha256", sha256, "--out", out];
    assert_eq!(cli.run_with(&args, &[], Some(token)).code, 0);
    let (cert, key) = (format!("{out}/machine.crt"), format!("{out}/machine.key"));
    let shown = ["whoami", "--cert", &cert, "--key", &key, "-o", "json"];
    assert_eq!(cli.json(&shown)["name"], "node/n1");
    assert_eq!(cli.json(&["whoami", "-o", "json"])["name"], "admin");

    let method = "selvage.identity.IdentityService/BlockMachine";
    cli.ok(&["call", method, r#"{"machine":"node/n1"}"#]);
    let blocked = cli.run(&shown);
    assert_eq!(blocked.code, i32::from(selvage_api::Code::PermissionDenied.exit()), "{blocked:?}");
}
