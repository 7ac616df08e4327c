//! Users, passwords and what a table of roles cannot see.

use std::{sync::Arc, time::Duration};

use selvage_api::selvage::identity::{
    AddUserRequest, AddUserResponse, ListUsersRequest, RemoveUserRequest, SetPasswordRequest,
    UpdateUserRequest, WhoAmIRequest,
};
use tonic::{Code, Status};

use crate::harness::{
    HERE, Harness, PASSWORD, anonymous, as_machine, as_root, code, user, wire_grants,
};

async fn try_add(
    h: &Harness,
    username: &str,
    grants: &[(&str, &str)],
    password: &str,
) -> Result<AddUserResponse, Status> {
    let user = user(username, grants);
    let request = AddUserRequest { user: Some(user), password: password.into() };
    Ok(h.identities().add_user(as_root(request)).await?.into_inner())
}

fn update(username: &str, grants: &[(&str, &str)], disabled: bool) -> UpdateUserRequest {
    UpdateUserRequest { username: username.into(), grants: wire_grants(grants), disabled }
}

fn remove(username: &str) -> RemoveUserRequest {
    RemoveUserRequest { username: username.into() }
}

#[tokio::test]
async fn users_are_added_listed_changed_and_removed() {
    let h = Harness::new().await;
    let added = try_add(&h, "bert", &[("developer", "acme")], PASSWORD).await.unwrap();
    assert_eq!(added.generated_password, "");
    let bert = added.user.unwrap();
    assert_eq!(bert.source, "password");
    assert!(bert.created_at.is_some() && bert.password_changed_at.is_some());
    try_add(&h, "anna", &[("admin", "")], PASSWORD).await.unwrap();
    assert_eq!(code(try_add(&h, "anna", &[], PASSWORD).await), Code::AlreadyExists);

    let reply = h.identities().list_users(as_root(ListUsersRequest {})).await.unwrap();
    let names: Vec<_> = reply.into_inner().users.into_iter().map(|user| user.username).collect();
    assert_eq!(names, ["anna", "bert"]);

    let change = as_root(update("bert", &[("viewer", "")], true));
    let changed = h.identities().update_user(change).await.unwrap();
    let changed = changed.into_inner().user.unwrap();
    assert!(changed.disabled);
    assert_eq!(changed.grants, wire_grants(&[("viewer", "")]));
    h.identities().remove_user(as_root(remove("bert"))).await.unwrap();
    for outcome in [
        h.identities().remove_user(as_root(remove("bert"))).await.map(drop),
        h.identities()
            .update_user(as_root(update("bert", &[("viewer", "")], false)))
            .await
            .map(drop),
    ] {
        assert_eq!(code(outcome), Code::NotFound);
    }
}

#[tokio::test]
async fn a_password_that_is_not_given_is_made_and_works() {
    let h = Harness::new().await;
    let added = try_add(&h, "anna", &[], "").await.unwrap();
    assert!(h.login_from(HERE, "anna", &added.generated_password).await.is_ok());
}

#[tokio::test]
async fn wrong_input_is_refused_by_field() {
    let h = Harness::new().await;
    let cases = [
        ("", "viewer", PASSWORD, "user.username: "),
        ("a b", "viewer", PASSWORD, "user.username: "),
        ("anna", "viewer", "short", "password: "),
        ("anna", "king", PASSWORD, "user.grants: [1]: "),
        ("anna", "operator", PASSWORD, "user.grants: [1]: "),
    ];
    for (username, role, password, field) in cases {
        let grants = [("viewer", ""), (role, "")];
        let status = try_add(&h, username, &grants, password).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{}", status.message());
    }
    let nothing = AddUserRequest { user: None, password: PASSWORD.into() };
    assert_eq!(code(h.identities().add_user(as_root(nothing)).await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_change_that_names_no_grants_takes_none_away() {
    let h = Harness::new().await;
    h.add("anna", &[("operator", "tmus")]).await;
    let token = h.token("anna").await;
    for disabled in [false, true] {
        let outcome = h.identities().update_user(as_root(update("anna", &[], disabled))).await;
        let status = outcome.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("grants: "), "{}", status.message());
    }
    let anna = h.identity(&token).await.unwrap();
    assert_eq!(anna.grants.len(), 1, "neither the grants nor the session went");
}

#[tokio::test]
async fn only_administrators_touch_users() {
    let h = Harness::new().await;
    h.add("anna", &[("viewer", ""), ("operator", "tmus")]).await;
    let token = h.token("anna").await;
    let add = AddUserRequest { user: Some(user("eve", &[])), password: PASSWORD.into() };
    let mut client = h.identities();
    assert_eq!(
        code(client.add_user(h.with_token(&token, add.clone()).await).await),
        Code::PermissionDenied
    );
    assert_eq!(code(client.add_user(anonymous(HERE, add)).await), Code::Unauthenticated);
    let list = h.with_token(&token, ListUsersRequest {}).await;
    assert_eq!(code(client.list_users(list).await), Code::PermissionDenied);
    let promote = update("anna", &[("admin", "")], false);
    let promote = h.with_token(&token, promote).await;
    assert_eq!(code(client.update_user(promote).await), Code::PermissionDenied);
    let removal = h.with_token(&token, remove("anna")).await;
    assert_eq!(code(client.remove_user(removal).await), Code::PermissionDenied);
    let machine = as_machine("node/n1", remove("anna"));
    assert_eq!(code(client.remove_user(machine).await), Code::PermissionDenied);
}

#[tokio::test]
async fn the_last_administrator_stays() {
    let h = Harness::new().await;
    h.add("anna", &[("admin", "")]).await;
    h.add("bert", &[("viewer", "")]).await;
    let mut client = h.identities();
    for outcome in [
        client.remove_user(as_root(remove("anna"))).await.map(drop),
        client.update_user(as_root(update("anna", &[("viewer", "")], false))).await.map(drop),
        client.update_user(as_root(update("anna", &[("admin", "")], true))).await.map(drop),
    ] {
        let status = outcome.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("last administrator"), "{}", status.message());
    }
    // A disabled administrator is none.
    h.add("carl", &[("admin", "")]).await;
    client.update_user(as_root(update("carl", &[("admin", "")], true))).await.unwrap();
    assert_eq!(code(client.remove_user(as_root(remove("anna"))).await), Code::FailedPrecondition);
    client.update_user(as_root(update("carl", &[("admin", "")], false))).await.unwrap();
    client.remove_user(as_root(remove("anna"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrators_who_remove_one_another_leave_one() {
    for _ in 0..10 {
        let h = Arc::new(Harness::new().await);
        for name in ["a", "b", "c"] {
            h.add(name, &[("admin", "")]).await;
        }
        let mut removals = tokio::task::JoinSet::new();
        for name in ["a", "b", "c"] {
            let h = Arc::clone(&h);
            removals.spawn(async move { h.identities().remove_user(as_root(remove(name))).await });
        }
        let outcomes = removals.join_all().await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 2);
        let left = h.identities().list_users(as_root(ListUsersRequest {})).await.unwrap();
        assert_eq!(left.into_inner().users.len(), 1);
    }
}

#[tokio::test]
async fn ones_own_password_needs_the_current_one_and_anothers_an_administrator() {
    let h = Harness::new().await;
    h.add("anna", &[("admin", "")]).await;
    h.add("bert", &[("viewer", "")]).await;
    let (anna, bert) = (h.token("anna").await, h.token("bert").await);
    let set = async |token: &str, username: &str, current: &str, new: &str| {
        let change = SetPasswordRequest {
            username: username.into(),
            current_password: current.into(),
            new_password: new.into(),
        };
        h.identities().set_password(h.with_token(token, change).await).await
    };
    assert_eq!(code(set(&bert, "", "", "new horse 1").await), Code::InvalidArgument);
    assert_eq!(code(set(&bert, "", "wrong horse", "new horse 1").await), Code::PermissionDenied);
    assert_eq!(code(set(&bert, "bert", PASSWORD, "short").await), Code::InvalidArgument);
    assert_eq!(code(set(&bert, "anna", PASSWORD, "new horse 1").await), Code::PermissionDenied);
    // Not even an administrator sets a new password without the current one.
    assert_eq!(code(set(&anna, "anna", "", "new horse 1").await), Code::InvalidArgument);
    assert_eq!(code(set(&anna, "nobody", "", "new horse 1").await), Code::NotFound);
    assert!(h.is_valid(&bert).await);

    let reply = set(&anna, "bert", "", "new horse 1").await.unwrap();
    assert_eq!(reply.into_inner().sessions_ended, 1);
    assert!(!h.is_valid(&bert).await);
    assert!(h.login_from(HERE, "bert", "new horse 1").await.is_ok());
    let nobody = SetPasswordRequest { new_password: "new horse 1".into(), ..Default::default() };
    let status = h.identities().set_password(anonymous(HERE, nobody)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn everybody_learns_who_he_is() {
    let h = Harness::new().await;
    h.add("anna", &[("operator", "tmus")]).await;
    let token = h.token("anna").await;
    let mut client = h.identities();
    let reply = client.who_am_i(h.with_token(&token, WhoAmIRequest {}).await).await.unwrap();
    let reply = reply.into_inner();
    assert_eq!((reply.name.as_str(), reply.kind.as_str()), ("anna", "user"));
    assert_eq!(reply.grants, wire_grants(&[("operator", "tmus")]));
    assert!(reply.expires.is_some());
    let reply = client.who_am_i(as_machine("cloudlet/tmus/c1", WhoAmIRequest {})).await.unwrap();
    let reply = reply.into_inner();
    assert_eq!((reply.name.as_str(), reply.kind.as_str()), ("cloudlet/tmus/c1", "machine"));
    assert!(reply.expires.is_none() && reply.grants.is_empty());
    let reply = client.who_am_i(as_root(WhoAmIRequest {})).await.unwrap().into_inner();
    assert_eq!(reply.kind, "local");
    let nobody = client.who_am_i(anonymous(HERE, WhoAmIRequest {})).await;
    assert_eq!(code(nobody), Code::Unauthenticated);
}

#[tokio::test]
async fn a_first_password_is_reported_until_it_is_changed() {
    let h = Harness::new().await;
    h.add("bert", &[("viewer", "")]).await;
    let token = h.token("bert").await;
    let mut client = h.identities();
    let request = h.with_token(&token, WhoAmIRequest {}).await;
    assert!(client.who_am_i(request).await.unwrap().into_inner().first_password);
    h.clock.advance(Duration::from_secs(60));
    let change = SetPasswordRequest {
        current_password: PASSWORD.into(),
        new_password: "new horse 1".into(),
        ..Default::default()
    };
    client.set_password(h.with_token(&token, change).await).await.unwrap();
    let request = h.with_token(&token, WhoAmIRequest {}).await;
    assert!(!client.who_am_i(request).await.unwrap().into_inner().first_password);
    let machine = client.who_am_i(as_machine("cloudlet/tmus/c1", WhoAmIRequest {})).await.unwrap();
    assert!(!machine.into_inner().first_password);
}
