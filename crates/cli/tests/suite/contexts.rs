use crate::{fake, harness::Person};

#[tokio::test]
async fn contexts_are_listed_chosen_renamed_and_forgotten() {
    let mut person = Person::new();
    let server = fake::http().await;
    for name in ["home", "work"] {
        person.run(&["--context", name, "login", &server.endpoint]).await.good();
    }
    let list = person.run(&["context", "list"]).await.good();
    let endpoint = &server.endpoint;
    let width = endpoint.len();
    assert_eq!(
        list,
        format!(
            "   NAME  {:<width$}  USER\n   home  {endpoint}  -\n*  work  {endpoint}  -\n",
            "ENDPOINT"
        )
    );
    person.run(&["context", "use", "home"]).await.good();
    person.run(&["context", "rename", "home", "house"]).await.good();
    let shown = person.run(&["context", "show", "-o", "json"]).await.good();
    assert!(shown.starts_with(r#"{"current":true,"name":"house","#), "{shown}");

    let (code, stderr) = person.run(&["context", "rename", "work", "house"]).await.bad();
    assert_eq!(code, 3, "{stderr}");
    let (code, stderr) = person.run(&["context", "use", "hous"]).await.bad();
    assert_eq!(code, 4);
    assert!(stderr.contains("did you mean house?"), "{stderr}");

    person.run(&["context", "remove", "house"]).await.good();
    let (code, stderr) = person.run(&["whoami"]).await.bad();
    assert_eq!(code, 8);
    assert!(stderr.contains("run `selvage login https://HOST:PORT`"), "{stderr}");
}

#[tokio::test]
async fn of_several_servers_the_first_that_answers_is_used() {
    let mut person = Person::new();
    let server = fake::http().await;
    person.run(&["--context", "lab", "login", &server.endpoint]).await.good();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = format!("http://{closed}");
    person.run(&["context", "endpoints", "lab", &away, &server.endpoint]).await.good();
    person.run(&["whoami"]).await.good();
    let shown = person.run(&["context", "show", "-o", "json"]).await.good();
    assert!(shown.contains(&format!(r#""others":["{}"]"#, server.endpoint)), "{shown}");
    let (code, stderr) = person.run(&["--endpoint", &away, "whoami"]).await.bad();
    assert_eq!(code, 13, "that one alone was asked for: {stderr}");
    let (code, _) = person.run(&["context", "endpoints", "lab", "ftp://x"]).await.bad();
    assert_eq!(code, 3);
}

#[tokio::test]
async fn explain_lists_and_tells() {
    let mut person = Person::new();
    let list = person.run(&["explain"]).await.good();
    assert_eq!(list.lines().count(), 15);
    assert!(list.starts_with("CODE "), "{list}");
    let page = person.run(&["explain", "exit:6"]).await.good();
    assert!(page.starts_with("UNAUTHENTICATED (exit code 6, gRPC 16, HTTP 401)\n\n"), "{page}");
}

#[tokio::test]
async fn completion_and_man_pages_know_the_commands() {
    let mut person = Person::new();
    let server = fake::http().await;
    person.run(&["--context", "my-own-lab", "login", &server.endpoint]).await.good();
    for shell in ["bash", "zsh", "fish"] {
        let script = person.run(&["completion", shell]).await.good();
        let mut words = vec!["join-token", "my-own-lab"];
        // clap's generator for fish completes options only.
        if shell != "fish" {
            words.extend(["edgeproto.AppApi/CreateApp", "DATA_LOSS"]);
        }
        for word in words {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let dir = person.dir.path().join("man/man1");
    person.run(&["man", &dir.display().to_string()]).await.good();
    for page in ["selvage.1", "selvage-call.1", "selvage-user-add.1", "selvage-join-token-create.1"]
    {
        let text = std::fs::read_to_string(dir.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[tokio::test]
async fn the_contracts_can_be_browsed() {
    let mut person = Person::new();
    let list = person.run(&["api", "list", "services.auth", "-o", "wide"]).await.good();
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(list.contains("services.auth.AuthService/Login"), "{list}");
    let text = person.run(&["api", "describe", "AuthService/Login"]).await.good();
    assert!(text.contains("message services.auth.LoginRequest {"), "{text}");
    let (code, _) = person.run(&["api", "list", "qqqq"]).await.bad();
    assert_eq!(code, 4);
}
