use std::{sync::Arc, time::Duration};

use crate::{
    fake::{self, Authority, PASSWORD, ServerState, TOKEN},
    harness::Person,
};

async fn person(server: &fake::Running) -> Person {
    let mut person = Person::new();
    person.run(&["login", &server.endpoint]).await.good();
    person
}

#[tokio::test]
async fn a_method_by_name_over_tls() {
    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let mut person = Person::new();
    let login = ["login", &server.endpoint, "--ca-sha256", &ca.sha256];
    person.answering(&["admin", PASSWORD]).run(&login).await.good();
    assert_eq!(
        person.run(&["call", "selvage.identity.IdentityService/WhoAmI"]).await.good(),
        "{\n  \"name\": \"admin\",\n  \"kind\": \"user\",\n  \"grants\": [\n    {\n      \"role\": \"admin\"\n    }\n  ]\n}\n"
    );
    let line = ["call", "IdentityService.WhoAmI", "{}", "-o", "json"];
    let one = r#"{"name":"admin","kind":"user","grants":[{"role":"admin"}]}"#;
    assert_eq!(person.run(&line).await.good(), format!("{one}\n"));
}

#[tokio::test]
async fn a_stream_of_answers() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let method = "edgeproto.FlavorApi/ShowFlavor";
    assert_eq!(
        person.run(&["call", method, "{}", "-o", "json"]).await.good(),
        "{\"key\":{\"name\":\"small\"},\"ram\":\"512\",\"vcpus\":\"1\",\"disk\":\"2\"}\n\
         {\"key\":{\"name\":\"x-large\"},\"ram\":\"8192\",\"vcpus\":\"1\",\"disk\":\"2\"}\n"
    );
    assert_eq!(
        person.run(&["call", method, "-o", "table"]).await.good(),
        "NAME     RAM   VCPUS  DISK\nsmall    512   1      2\nx-large  8192  1      2\n"
    );
    let outcome = person.run(&["call", method, r#"{"ram": 13}"#, "-o", "table"]).await;
    assert_eq!(outcome.out.lines().count(), 3, "what came before the failure is printed");
    let (code, stderr) = outcome.bad();
    assert_eq!(code, 13);
    assert!(stderr.starts_with("error: the store went away\n"), "{stderr}");
}

#[tokio::test]
async fn streams_both_ways_from_stdin() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    for line in
        [vec!["call", "NotifyApi/StreamNotice", "-"], vec!["call", "NotifyApi/StreamNotice"]]
    {
        let out = person
            .piping("{\"version\": 1}\n{\"version\": 5, \"wantObjs\": [\"App\"]}")
            .run(&[line, vec!["-o", "json"]].concat())
            .await
            .good();
        assert_eq!(out, "{\"version\":2}\n{\"version\":6,\"want_objs\":[\"App\"]}\n");
    }
    assert_eq!(*server.state.completed.lock().unwrap(), [2, 2]);
}

#[tokio::test]
async fn a_mistake_in_a_stream_breaks_it_off_instead_of_ending_it() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let (code, stderr) = person
        .piping(r#"{"version": 1} {"verson": 5}"#)
        .run(&["call", "NotifyApi/StreamNotice", "-"])
        .await
        .bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("did you mean version?"), "{stderr}");
    // A good stream after it: had the broken one ended in order, it would be
    // there before this one.
    person.piping("{} {} {}").run(&["call", "NotifyApi/StreamNotice", "-"]).await.good();
    assert_eq!(*server.state.completed.lock().unwrap(), [3]);
}

#[tokio::test]
async fn bodies_come_from_files_and_mistakes_never_reach_the_server() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let file = format!("@{}", person.file("body.json", r#"{"username": "x"}"#).display());
    let remove = "selvage.identity.IdentityService/RemoveUser";
    let (code, stderr) = person.run(&["call", remove, &file]).await.bad();
    assert_eq!((code, stderr.lines().next()), (4, Some("error: there is no user x")));

    for (body, expected) in [
        (r#"{"user": "x"}"#, r#"user: selvage.identity.RemoveUserRequest has no field "user""#),
        ("{} {}", "the body holds several messages"),
        ("{", "message 1 of the body is not JSON"),
        ("", "the body is empty"),
    ] {
        let (code, stderr) = person.run(&["call", remove, body]).await.bad();
        assert_eq!(code, 3, "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    let (code, stderr) = person.run(&["call", remove, "@/none"]).await.bad();
    assert_eq!(code, 4, "{stderr}");
    let (code, stderr) = person.run(&["call", "IdentityService/RemovUser"]).await.bad();
    assert_eq!(code, 4);
    assert!(
        stderr.contains("did you mean selvage.identity.IdentityService/RemoveUser"),
        "{stderr}"
    );
}

#[tokio::test]
async fn metadata_deadline_and_name_go_along() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    person.env.push(("SELVAGE_TOKEN".into(), TOKEN.into()));
    let line = ["call", "FlavorApi/ShowFlavor", "-H", "x-trace: abc", "--timeout", "20s"];
    person.run(&line).await.good();
    let metadata = server.state.metadata.lock().unwrap().clone();
    let value = |key: &str| metadata.get(key).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(value("x-trace").as_deref(), Some("abc"));
    assert_eq!(value("authorization"), Some(format!("Bearer {TOKEN}")));
    assert!(value("user-agent").unwrap().starts_with("selvage/"), "{metadata:?}");
    assert!(value("grpc-timeout").is_some(), "{metadata:?}");
}

#[tokio::test]
async fn a_call_that_hangs_is_given_up() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let line = ["call", "IdentityService/RemoveUser", r#"{"username":"hang"}"#];
    let (code, stderr) = person.within(Duration::from_millis(50)).run(&line).await.bad();
    assert_eq!(code, 11, "{stderr}");
}

#[tokio::test]
async fn the_same_over_a_unix_socket() {
    let mut person = Person::new();
    let server = fake::unix(&person.dir.path().join("s.sock"));
    let line = ["call", "NotifyApi/StreamNotice", r#"{"version":7}"#, "-o", "yaml", "--endpoint"];
    let out = person.run(&[&line[..], &[&server.endpoint]].concat()).await.good();
    assert_eq!(out, "version: 8\n");
}

#[tokio::test]
async fn fields_with_their_default_value_on_demand() {
    let server = fake::http().await;
    let mut person = person(&server).await;
    let line = ["call", "SystemService/GetStatus", "-o", "json"];
    assert_eq!(person.run(&line).await.good(), "{\"version\":\"9.9.9\"}\n");
    let all = person.run(&[&line[..], &["--all-fields"]].concat()).await.good();
    assert!(all.contains("\"insecure\":false"), "{all}");
}
