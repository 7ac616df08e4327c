use crate::{fake, harness::Person};

async fn person(server: &fake::Running) -> Person {
    let mut person = Person::new();
    person.run(&["login", &server.endpoint]).await.good();
    person
}

#[tokio::test]
async fn people_are_added_listed_changed_and_removed() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let added = person
        .answering(&["secret-1", "secret-1"])
        .run(&["user", "add", "ada", "--role", "operator:tmus", "--role", "viewer"])
        .await
        .good();
    assert_eq!(
        added,
        "USERNAME  GRANTS                DISABLED  SOURCE\n\
         ada       operator:tmus,viewer  false     -\n"
    );
    let made = person.run(&["user", "add", "ci", "--generate", "-o", "json"]).await.good();
    assert_eq!(made, "{\"user\":{\"username\":\"ci\"},\"generated_password\":\"generated-1\"}\n");
    let outcome = person.run(&["user", "add", "cd", "--generate"]).await;
    assert!(outcome.out.ends_with("\npassword  generated-1\n"), "{}", outcome.out);
    outcome.good();
    assert_eq!(
        person.run(&["user", "list", "-o", "yaml"]).await.good().matches("username:").count(),
        3
    );

    // What is not mentioned stays as it is.
    person.run(&["user", "update", "ada", "--disable"]).await.good();
    let list = person.run(&["user", "update", "ada", "--role", "viewer"]).await.good();
    assert!(list.contains("ada       viewer  true"), "{list}");
    let (code, stderr) = person.run(&["user", "update", "adda", "--enable"]).await.bad();
    assert_eq!(code, 4);
    assert!(stderr.contains("did you mean ada"), "{stderr}");
    let (code, _) = person.run(&["user", "update", "ada"]).await.bad();
    assert_eq!(code, 3);

    let (code, stderr) = person.run(&["user", "remove", "ada"]).await.bad();
    assert_eq!(code, 8);
    assert!(stderr.contains("--yes"), "{stderr}");
    let (code, stderr) = person.answering(&["n"]).run(&["user", "remove", "ada"]).await.bad();
    assert_eq!(code, 12);
    assert!(stderr.contains("ada stays: nothing was changed"), "{stderr}");
    person.answering(&["y"]).run(&["user", "remove", "ada"]).await.good();
    assert!(!server.state.users.lock().unwrap().contains_key("ada"));
}

#[tokio::test]
async fn a_name_that_is_taken() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    person.run(&["user", "add", "ada", "--generate"]).await.good();
    let (code, stderr) = person.run(&["user", "add", "ada", "--generate"]).await.bad();
    assert_eq!(code, 5);
    assert!(stderr.starts_with("error: user ada is there already\n"), "{stderr}");
}

#[tokio::test]
async fn passwords_are_asked_for_twice_and_never_shown() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let (code, stderr) =
        person.answering(&["canary-1", "canary-2"]).run(&["user", "add", "ada"]).await.bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("the two passwords differ") && !stderr.contains("canary"), "{stderr}");

    let (code, stderr) = person.run(&["user", "add", "ada"]).await.bad();
    assert_eq!(code, 8);
    assert!(stderr.contains("--generate"), "{stderr}");

    // Another's needs no old one; somebody without a password has none to set.
    person.answering(&["new-pass-1", "new-pass-1"]).run(&["user", "passwd", "bob"]).await.good();
    let (code, _) = person.answering(&[]).run(&["user", "passwd"]).await.bad();
    assert_eq!(code, 3);
    person.env.push(("SELVAGE_TOKEN".into(), fake::TOKEN.into()));
    let outcome = person
        .answering(&["old-pass-1", "new-pass-2", "new-pass-2"])
        .run(&["user", "passwd"])
        .await;
    assert!(outcome.err.ends_with("The password of admin is set; 2 other sessions ended.\n"));
    outcome.good();

    let seen = server.state.passwords.lock().unwrap();
    let of = |at: usize| {
        let one = &seen[at];
        [one.username.as_str(), &one.current_password, &one.new_password]
    };
    assert_eq!(of(0), ["bob", "", "new-pass-1"]);
    assert_eq!(of(1), ["", "old-pass-1", "new-pass-2"]);
}

#[tokio::test]
async fn machines_are_blocked_listed_and_let_in_again() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let shown = person.run(&["machine", "block", "node/rack3-7"]).await.good();
    assert!(shown.contains("MACHINE") && shown.contains("node/rack3-7"), "{shown}");
    let listed = person.run(&["machine", "list", "--blocked", "-o", "json"]).await.good();
    assert!(listed.contains(r#""machine":"node/rack3-7""#), "{listed}");

    let (_, stderr) = person.run(&["machine", "unblock", "node/rack3-7", "--no-input"]).await.bad();
    assert!(stderr.contains("--yes"), "{stderr}");
    person.answering(&["y"]).run(&["machine", "unblock", "node/rack3-7"]).await.good();
    let (_, stderr) = person.run(&["machine", "unblock", "node/rack3-7", "--yes"]).await.bad();
    assert!(stderr.contains("not blocked"), "{stderr}");
    let listed = person.run(&["machine", "list", "-l", "rack=3"]).await.good();
    assert!(listed.contains("LAST SEEN") && listed.contains("node/rack=3"), "{listed}");
    let (_, stderr) = person.run(&["machine", "remove", "node/gone"]).await.bad();
    assert!(stderr.contains("not found"), "{stderr}");
    let stderr = person.misspelt(&["machine", "block", "noode/x"]);
    assert!(stderr.contains("noode"), "{stderr}");
}
