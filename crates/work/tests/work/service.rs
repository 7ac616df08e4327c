//! The service: who sees what, who may cancel, how streams end.

use futures::StreamExt;
use selvage_api::selvage::operations::operation_service_server::OperationService;
use selvage_api::selvage::operations::{
    CancelOperationRequest, FollowOperationRequest, ListOperationsRequest, State,
};
use selvage_kit::identity::{Grant, Identity, Kind, Role};
use selvage_work::OperationsApi;
use tonic::{Code, Request, Status};

use crate::support::{Make, Process, Shop, memory, order, soon};

fn user(name: &str, role: Role, organisation: &str) -> Identity {
    Identity {
        name: name.into(),
        kind: Kind::User { session: "s".into(), expires: i64::MAX },
        grants: vec![Grant { role, organisation: organisation.into() }],
    }
}

fn from<T>(caller: &Identity, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(caller.clone());
    request
}

async fn keys(api: &OperationsApi, caller: &Identity, asked: ListOperationsRequest) -> Vec<String> {
    let listed = api.list_operations(from(caller, asked)).await.unwrap().into_inner();
    listed.operations.into_iter().map(|operation| operation.key).collect()
}

#[tokio::test]
async fn what_is_not_theirs_callers_do_not_see_or_only_see() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let process = Process::start(&store, "one", &shop).await;
    let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
    shop.begun("run create", 1).await;
    let api = OperationsApi::new([process.engine.clone()]);
    let all = ListOperationsRequest::default;
    let cancel = || CancelOperationRequest { id: handle.id().into() };

    let strangers = [
        Identity::anonymous(),
        user("mallory", Role::Developer, "globex"),
        user("mallory", Role::Operator, ""),
    ];
    for stranger in &strangers {
        assert!(keys(&api, stranger, all()).await.is_empty());
        let status = api.cancel_operation(from(stranger, cancel())).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        let asked = FollowOperationRequest { id: handle.id().into() };
        let status = api.follow_operation(from(stranger, asked)).await.err().unwrap();
        assert_eq!(status.code(), Code::NotFound);
    }
    let viewer = user("vera", Role::Viewer, "");
    assert_eq!(keys(&api, &viewer, all()).await, ["lamp"]);
    let status = api.cancel_operation(from(&viewer, cancel())).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(!handle.operation().cancelling);

    handle.cancel("alice").await.unwrap();
    soon("the end", handle.ended()).await.unwrap_err();
}

#[tokio::test]
async fn a_caller_who_may_cancel_learns_the_outcome() {
    let (store, shop) = (memory().await, Shop::holding("create"));
    let process = Process::start(&store, "one", &shop).await;
    let api = OperationsApi::new([process.engine.clone()]);
    let owners = [
        user("alice", Role::Developer, "elsewhere"),
        user("bob", Role::Developer, "acme"),
        user("carl", Role::Operator, "acme"),
        user("root", Role::Admin, ""),
    ];
    for (number, owner) in owners.iter().enumerate() {
        let handle = process.engine.start::<Make>(order("lamp"), "alice").await.unwrap();
        shop.begun("run create", number + 1).await;
        let id = handle.id().to_owned();
        let asked = FollowOperationRequest { id: id.clone() };
        let stream = api.follow_operation(from(owner, asked)).await.unwrap().into_inner();
        let response = api.cancel_operation(from(owner, CancelOperationRequest { id })).await;
        assert!(response.unwrap().into_inner().operation.unwrap().cancelling);
        let mut events: Vec<_> = soon("the stream", stream.collect()).await;
        let status: Status = events.pop().unwrap().unwrap_err();
        let text = format!("cancelled by {}", owner.name);
        assert_eq!((status.code(), status.message()), (Code::Cancelled, text.as_str()));
        assert_eq!(events[0].as_ref().unwrap().message, "reserve lamp");
    }
    let mut seen = keys(&api, &owners[2], ListOperationsRequest::default()).await;
    seen.dedup();
    assert_eq!(seen, ["lamp"]);
}

#[tokio::test]
async fn lists_are_filtered_and_newest_first() {
    let (store, shop) = (memory().await, Shop::new());
    let process = Process::start(&store, "one", &shop).await;
    let api = OperationsApi::new([process.engine.clone()]);
    let ended = process.engine.start::<Make>(order("a"), "alice").await.unwrap();
    soon("the end", ended.ended()).await.unwrap();
    shop.hold.send_replace("create");
    let running = process.engine.start::<Make>(order("b"), "alice").await.unwrap();
    shop.begun("run create", 2).await;
    let alice = user("alice", Role::Developer, "");
    let asked = ListOperationsRequest::default;
    assert_eq!(keys(&api, &alice, asked()).await, ["b", "a"]);
    assert_eq!(keys(&api, &alice, ListOperationsRequest { active: true, ..asked() }).await, ["b"]);
    let by_key = ListOperationsRequest { key: "a".into(), ..asked() };
    assert_eq!(keys(&api, &alice, by_key).await, ["a"]);
    let by_kind = ListOperationsRequest { kind: "Other".into(), ..asked() };
    assert!(keys(&api, &alice, by_kind).await.is_empty());
    assert_eq!(running.operation().state(), State::Running);
    for (id, code) in [("", Code::InvalidArgument), ("nonsense", Code::NotFound)] {
        let request = from(&alice, FollowOperationRequest { id: id.into() });
        assert_eq!(api.follow_operation(request).await.err().unwrap().code(), code);
    }
}

#[tokio::test]
async fn operations_of_all_engines_are_shown_and_found() {
    let (first, second) = (Shop::new(), Shop::holding("create"));
    let (one, two) = (memory().await, memory().await);
    let one = Process::start(&one, "one", &first).await;
    let two = Process::start(&two, "two", &second).await;
    let ended = one.engine.start::<Make>(order("a"), "alice").await.unwrap();
    soon("the end", ended.ended()).await.unwrap();
    let running = two.engine.start::<Make>(order("b"), "alice").await.unwrap();
    second.begun("run create", 1).await;
    let api = OperationsApi::new([one.engine.clone(), two.engine.clone()]);
    let alice = user("alice", Role::Developer, "");
    let mut seen = keys(&api, &alice, ListOperationsRequest::default()).await;
    seen.sort();
    assert_eq!(seen, ["a", "b"]);
    let id = running.id().to_owned();
    let cancelled = api.cancel_operation(from(&alice, CancelOperationRequest { id })).await;
    assert!(cancelled.unwrap().into_inner().operation.unwrap().cancelling);
    soon("the end", running.ended()).await.unwrap_err();
}
