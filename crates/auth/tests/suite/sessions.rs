//! Lifetimes of sessions, and who may see and end them.

use std::time::Duration;

use selvage_api::selvage::identity::{
    ListSessionsRequest, RemoveUserRequest, RevokeSessionRequest, Session, SetPasswordRequest,
    UpdateUserRequest, WhoAmIRequest,
};
use selvage_kit::identity::{Authenticator, Credentials, Secret};
use tonic::Code;

use crate::harness::{HERE, Harness, PASSWORD, anonymous, as_root, code, wire_grants};

fn list(username: &str) -> ListSessionsRequest {
    ListSessionsRequest { username: username.into() }
}

async fn sessions(h: &Harness, token: &str, username: &str) -> Vec<Session> {
    let request = h.with_token(token, list(username)).await;
    h.identities().list_sessions(request).await.unwrap().into_inner().sessions
}

#[tokio::test]
async fn an_idle_session_ends_and_use_keeps_it_alive() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let (used, idle) = (h.token("anna").await, h.token("anna").await);
    for _ in 0..6 {
        h.advance(59 * 60 / 3);
        assert!(h.identity(&used).await.is_some());
    }
    assert!(!h.is_valid(&idle).await);
    h.advance(60 * 60);
    assert!(!h.is_valid(&used).await);
}

#[tokio::test]
async fn an_open_stream_does_not_keep_an_idle_session_alive() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let token = h.token("anna").await;
    let bearer = Credentials::Bearer(Secret::new(token.as_str()));
    let cookie = Credentials::Cookie(Secret::new(token.as_str()));
    // Looked at again every 15 s, as callers of streams are.
    for _ in 0..(60 * 4 - 1) {
        h.advance(15);
        h.auth.recheck(&bearer).await.unwrap();
        h.auth.recheck(&cookie).await.unwrap();
    }
    h.advance(15);
    assert!(h.auth.recheck(&bearer).await.is_err());
    assert!(h.auth.recheck(&cookie).await.is_err());
    assert!(!h.is_valid(&token).await);
}

#[tokio::test]
async fn a_page_receives_the_time_at_which_its_idle_session_ends() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let token = h.token("anna").await;
    let idle_end = async |h: &Harness| {
        let request = h.with_token(&token, WhoAmIRequest {}).await;
        let answered = h.identities().who_am_i(request).await.unwrap().into_inner();
        answered.idle_end.unwrap().seconds - h.clock_seconds()
    };
    assert_eq!(idle_end(&h).await, 60 * 60);
    h.advance(20 * 60);
    assert_eq!(idle_end(&h).await, 60 * 60, "asking is a use");
    for _ in 0..23 {
        h.advance(30 * 60);
        h.identity(&token).await.unwrap();
    }
    assert_eq!(idle_end(&h).await, 10 * 60, "no later than the session itself");
}

#[tokio::test]
async fn a_session_ends_after_its_time_however_much_it_is_used() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let token = h.token("anna").await;
    for _ in 0..(12 * 4 - 1) {
        h.advance(15 * 60);
        assert!(h.identity(&token).await.is_some());
    }
    h.advance(15 * 60 - 1);
    assert!(h.is_valid(&token).await);
    h.advance(1);
    assert!(!h.is_valid(&token).await);
}

#[tokio::test]
async fn uses_are_written_now_and_then_and_checking_is_no_use() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let token = h.token("anna").await;
    let revision = h.store.revision().await.unwrap();
    h.advance(179);
    for _ in 0..100 {
        assert!(h.identity(&token).await.is_some());
    }
    assert_eq!(h.store.revision().await.unwrap(), revision);
    h.advance(1);
    for _ in 0..100 {
        assert!(h.identity(&token).await.is_some());
    }
    assert_eq!(h.store.revision().await.unwrap(), revision + 1);
    let seen = sessions(&h, &token, "").await.remove(0);
    let (last, created) = (seen.last_used_at.unwrap().seconds, seen.created_at.unwrap().seconds);
    assert_eq!(last - created, 180);
}

#[tokio::test]
async fn that_a_use_cannot_be_written_is_no_reason_to_refuse() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let token = h.token("anna").await;
    h.advance(600);
    h.store.close().await.unwrap();
    assert!(h.identity(&token).await.is_some());
}

#[tokio::test]
async fn the_oldest_of_too_many_sessions_ends() {
    let h = Harness::with(|options| options.max_sessions_per_user = 3).await;
    h.add("anna", &[]).await;
    h.add("bert", &[]).await;
    let other = h.token("bert").await;
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(h.token("anna").await);
        h.advance(1);
    }
    for (index, token) in tokens.iter().enumerate() {
        assert_eq!(h.is_valid(token).await, index >= 2, "{index}");
    }
    assert!(h.is_valid(&other).await);
}

#[tokio::test]
async fn one_sees_and_ends_ones_own_sessions() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    h.add("bert", &[]).await;
    let (anna, anna_too, bert) =
        (h.token("anna").await, h.token("anna").await, h.token("bert").await);
    let seen = sessions(&h, &anna, "").await;
    assert_eq!(seen.len(), 2);
    assert_eq!(seen.iter().filter(|session| session.current).count(), 1);
    let session = &seen[0];
    assert_eq!((session.username.as_str(), session.peer.as_str()), ("anna", HERE));
    assert_eq!(session.kind, "bearer");
    assert!(!anna.contains(&session.id) && !session.id.is_empty());

    let other = seen.iter().find(|session| !session.current).unwrap();
    let revoke = RevokeSessionRequest { id: other.id.clone() };
    let by_bert = h.with_token(&bert, revoke.clone()).await;
    assert_eq!(code(h.identities().revoke_session(by_bert).await), Code::NotFound);
    let by_nobody = anonymous(HERE, revoke.clone());
    assert_eq!(code(h.identities().revoke_session(by_nobody).await), Code::Unauthenticated);
    assert!(h.is_valid(&anna_too).await);
    let by_anna = h.with_token(&anna, revoke.clone()).await;
    h.identities().revoke_session(by_anna).await.unwrap();
    assert!(!h.is_valid(&anna_too).await);
    assert!(h.is_valid(&anna).await);
    let again = h.with_token(&anna, revoke).await;
    assert_eq!(code(h.identities().revoke_session(again).await), Code::NotFound);
}

#[tokio::test]
async fn only_administrators_see_the_sessions_of_others() {
    let h = Harness::new().await;
    h.add("anna", &[("admin", "")]).await;
    h.add("bert", &[("operator", "tmus"), ("viewer", "")]).await;
    let (anna, bert) = (h.token("anna").await, h.token("bert").await);
    assert_eq!(sessions(&h, &anna, "*").await.len(), 2);
    assert_eq!(sessions(&h, &anna, "bert").await.len(), 1);
    assert_eq!(sessions(&h, &bert, "bert").await.len(), 1);
    for username in ["*", "anna", "nobody"] {
        let request = h.with_token(&bert, list(username)).await;
        assert_eq!(code(h.identities().list_sessions(request).await), Code::PermissionDenied);
    }
    let status = h.identities().list_sessions(as_root(list(""))).await.unwrap_err();
    assert!(status.message().starts_with("username: "), "{}", status.message());

    let id = sessions(&h, &anna, "bert").await.remove(0).id;
    let revoke = h.with_token(&anna, RevokeSessionRequest { id }).await;
    h.identities().revoke_session(revoke).await.unwrap();
    assert!(!h.is_valid(&bert).await);
}

#[tokio::test]
async fn a_change_of_ones_own_password_ends_the_other_sessions() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let (here, there) = (h.token("anna").await, h.token("anna").await);
    let change = SetPasswordRequest {
        username: String::new(),
        current_password: PASSWORD.into(),
        new_password: "another horse".into(),
    };
    let reply = h.identities().set_password(h.with_token(&here, change).await).await.unwrap();
    assert_eq!(reply.into_inner().sessions_ended, 1);
    assert!(h.is_valid(&here).await);
    assert!(!h.is_valid(&there).await);
    assert!(h.login_from(HERE, "anna", "another horse").await.is_ok());
    assert_eq!(sessions(&h, &here, "").await.len(), 2);
}

#[tokio::test]
async fn changing_disabling_and_removing_a_user_ends_his_sessions() {
    let h = Harness::new().await;
    h.add("anna", &[("viewer", "")]).await;
    h.add("bert", &[]).await;
    let bystander = h.token("bert").await;
    let update = |grants: &[(&str, &str)], disabled| UpdateUserRequest {
        username: "anna".into(),
        grants: wire_grants(grants),
        disabled,
    };
    for change in [update(&[("operator", "tmus")], false), update(&[("viewer", "")], true)] {
        let token = h.token("anna").await;
        h.identities().update_user(as_root(change)).await.unwrap();
        assert!(!h.is_valid(&token).await);
    }
    let enable = update(&[("viewer", "")], false);
    h.identities().update_user(as_root(enable)).await.unwrap();
    let token = h.token("anna").await;
    let remove = RemoveUserRequest { username: "anna".into() };
    h.identities().remove_user(as_root(remove)).await.unwrap();
    assert!(!h.is_valid(&token).await);
    // A new user of the same name does not inherit them.
    h.add("anna", &[("admin", "")]).await;
    assert!(!h.is_valid(&token).await);
    assert!(h.is_valid(&bystander).await);
}

#[tokio::test]
async fn housekeeping_removes_what_has_ended_and_nothing_else() {
    let h = Harness::with(|options| options.idle = Duration::from_secs(600)).await;
    h.add("anna", &[]).await;
    let old = h.token("anna").await;
    h.advance(590);
    let young = h.token("anna").await;
    assert_eq!(h.auth.sweep().await.unwrap().sessions, 0);
    h.advance(20);
    assert_eq!(h.auth.sweep().await.unwrap().sessions, 1);
    assert!(!h.is_valid(&old).await);
    assert!(h.is_valid(&young).await);
    assert_eq!(h.auth.sweep().await.unwrap().sessions, 0);
}
