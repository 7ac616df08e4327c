use std::{sync::Arc, time::Duration};

use selvage_api::code::ALL;
use tokio::io::AsyncWriteExt;

use crate::{
    fake::{self, Authority, ServerState},
    harness::Person,
};

#[tokio::test]
async fn every_code_has_its_own_message_and_exit_code() {
    let mut person = Person::new();
    let server = fake::http().await;
    person.run(&["login", &server.endpoint]).await.good();
    for code in ALL {
        let number = code.grpc() as i32;
        let line = ["user", "remove", "--yes", &format!("code:{number}")];
        let (exit, stderr) = person.run(&line).await.bad();
        assert_eq!(exit, code.exit(), "{code}");
        assert!(stderr.starts_with(&format!("error: refused with {number}\n")), "{stderr}");
        assert!(
            stderr.ends_with(&format!("hint: `selvage explain {code}` says more\n")),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let mut person = Person::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for endpoint in
        [format!("https://{address}"), format!("http://{address}"), "unix:///none/s".into()]
    {
        let (code, stderr) = person.run(&["status", "--endpoint", &endpoint]).await.bad();
        assert_eq!(code, 13);
        assert!(stderr.starts_with(&format!("error: nobody answers at {endpoint}\n")), "{stderr}");
        assert!(stderr.contains("check that the server runs (`selvage up`)"), "{stderr}");
    }
}

#[tokio::test]
async fn plain_text_where_tls_is_expected_and_the_other_way_round() {
    let mut person = Person::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let line = ["status", "--endpoint", &format!("https://{address}")];
    let (code, stderr) = person.run(&line).await.bad();
    task.await.unwrap();
    assert_eq!(code, 13, "{stderr}");
    assert!(stderr.contains("does not speak TLS") && stderr.contains("http://"), "{stderr}");

    let ca = Arc::new(Authority::new());
    let server = fake::https(ServerState::default(), &ca).await;
    let plain = server.endpoint.replace("https", "http");
    let (code, stderr) = person.run(&["status", "--endpoint", &plain]).await.bad();
    assert_eq!(code, 13, "{stderr}");
}

#[tokio::test]
async fn a_certificate_for_another_name() {
    let ca = Arc::new(Authority::new());
    let state = ServerState { name: Some("edge.example.org".into()), ..ServerState::default() };
    let server = fake::https(state, &ca).await;
    let mut person = Person::new();
    let file = person.file("ca.pem", &ca.pem).display().to_string();
    let line = ["status", "--endpoint", &server.endpoint, "--ca", &file];
    let (code, stderr) = person.run(&line).await.bad();
    assert_eq!(code, 6, "{stderr}");
    assert!(stderr.contains("is not made out to that name"), "{stderr}");
}

#[tokio::test]
async fn time_runs_out_on_this_side() {
    let mut person = Person::new();
    let server = fake::http().await;
    let line = ["user", "remove", "--yes", "hang", "--endpoint", &server.endpoint];
    let (code, stderr) = person.within(Duration::from_millis(50)).run(&line).await.bad();
    assert_eq!(code, 11, "{stderr}");
    assert!(stderr.contains("--timeout 2m"), "{stderr}");
}
