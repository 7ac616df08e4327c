//! Guessing.

use std::sync::Arc;

use selvage_api::selvage::identity::SetPasswordRequest;
use tonic::Code;

use crate::harness::{ELSEWHERE, HERE, Harness, NEIGHBOUR, PASSWORD, code};

#[tokio::test]
async fn ten_thousand_wrong_tries_do_not_lock_the_user_out_elsewhere() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let mut looked_at = 0;
    for n in 0..10_000 {
        let from = format!("192.0.2.{}", n % 256);
        let status = h.login_from(&from, "anna", &format!("guess {n}")).await.unwrap_err();
        match status.code() {
            Code::Unauthenticated => looked_at += 1,
            Code::ResourceExhausted => {
                let wait = status.metadata().get("retry-after").unwrap().to_str().unwrap();
                assert_eq!(wait, "300");
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(looked_at, 10);
    // The right password is not looked at either from there, but elsewhere.
    let refused = h.login_from(HERE, "anna", PASSWORD).await;
    assert_eq!(code(refused), Code::ResourceExhausted);
    assert!(h.login_from(ELSEWHERE, "anna", PASSWORD).await.is_ok());
    h.advance(300);
    assert!(h.login_from(HERE, "anna", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn many_names_from_one_address_run_into_its_limit_and_concern_nobody_else() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    h.add("bert", &[]).await;
    // Next door, yesterday.
    assert!(h.login_from(NEIGHBOUR, "bert", PASSWORD).await.is_ok());
    h.advance(23 * 60 * 60);
    let mut looked_at = 0;
    for n in 0..200 {
        let name = if n % 2 == 0 { format!("user{n}") } else { format!("not a name {n}") };
        if code(h.login_from(HERE, &name, PASSWORD).await) == Code::Unauthenticated {
            looked_at += 1;
        }
    }
    assert_eq!(looked_at, 50);
    assert_eq!(code(h.login_from(HERE, "anna", PASSWORD).await), Code::ResourceExhausted);
    for from in [ELSEWHERE, NEIGHBOUR] {
        assert!(h.login_from(from, "anna", PASSWORD).await.is_ok(), "{from}");
    }
    for from in [HERE, NEIGHBOUR] {
        assert!(h.login_from(from, "bert", PASSWORD).await.is_ok(), "{from}");
    }
}

#[tokio::test]
async fn a_process_that_guesses_on_the_machine_itself_locks_nobody_out() {
    let h = Harness::new().await;
    h.add("admin", &[("admin", "")]).await;
    for n in 0..200 {
        let outcome = h.login_from("127.0.0.1", &format!("user{n}"), PASSWORD).await;
        assert_eq!(code(outcome), Code::Unauthenticated, "{n}");
    }
    assert!(h.login_from("127.0.0.1", "admin", PASSWORD).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_cannot_pass_before_the_first_failure_is_known() {
    let h = Arc::new(Harness::new().await);
    h.add("anna", &[]).await;
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let h = Arc::clone(&h);
        tries.spawn(async move { code(h.login_from(HERE, "anna", "wrong horse").await) });
    }
    let looked_at = tries.join_all().await.into_iter();
    assert_eq!(looked_at.filter(|code| *code == Code::Unauthenticated).count(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_right_passwords_succeeds() {
    let h = Arc::new(Harness::new().await);
    h.add("anna", &[]).await;
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let h = Arc::clone(&h);
        tries.spawn(async move { h.login_from(HERE, "anna", PASSWORD).await.is_ok() });
    }
    assert!(tries.join_all().await.into_iter().all(|ok| ok));
}

#[tokio::test]
async fn a_stolen_session_is_no_way_to_guess_the_password() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let token = h.token("anna").await;
    let mut codes = Vec::new();
    for n in 0..20 {
        let change = SetPasswordRequest {
            username: String::new(),
            current_password: format!("guess {n}"),
            new_password: "another horse".into(),
        };
        codes.push(code(h.identities().set_password(h.with_token(&token, change).await).await));
    }
    assert!(codes[..10].iter().all(|code| *code == Code::PermissionDenied));
    assert!(codes[10..].iter().all(|code| *code == Code::ResourceExhausted));
}
