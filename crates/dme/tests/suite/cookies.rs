//! Cookies, and the keys behind them.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use selvage_api::{
    Code,
    distributed_match_engine::{DlgMessage, DynamicLocGroupRequest, ReplyStatus},
};
use selvage_dme::{
    Cookies, Settings,
    keys::{KeySource, Policy, StoreKeys},
};
use selvage_kit::clock::ManualClock;
use selvage_store::{SharedStore, embedded::Embedded};
use serde_json::Value;

use crate::lab::{Keys, app, clock, engine_with, fill, name, register, session};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn cookies(keys: &Keys, clock: &ManualClock) -> Cookies {
    let cookies = Cookies::new(Arc::new(keys.clone()), DAY, Arc::new(clock.clone()));
    cookies.load().await.unwrap();
    cookies
}

fn part(cookie: &str, index: usize) -> Value {
    let text = cookie.split('.').nth(index).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap()
}

#[tokio::test]
async fn a_cookie_says_what_clients_of_the_original_read_in_it() {
    let keys = Keys::with(2);
    let engine = engine_with(Settings::default(), keys, clock()).await;
    let some = name("some");
    fill(&engine, &[app(&some)], &[]);
    let reply = engine.register(&register(&some), "2001:db8::7").unwrap();
    assert_eq!(reply.status(), ReplyStatus::RsSuccess);
    let cookie = &reply.session_cookie;
    assert_eq!(part(cookie, 0), serde_json::json!({"alg": "HS512", "typ": "JWT"}));
    let claims = part(cookie, 1);
    let now = 1_800_000_000;
    let expected = serde_json::json!({
        "exp": now + 24 * 3600,
        "iat": now,
        "key": {
            "peerip": "2001:db8::7",
            "devname": "some Inc",
            "appname": "some",
            "appvers": "1.0",
            "kid": 2,
        },
    });
    assert_eq!(claims, expected);
    let read = engine.cookies().verify(cookie).await.unwrap();
    assert_eq!((&read.app, &*read.peer), (&some, "2001:db8::7"));
    assert_eq!(engine.cookies().verify(cookie).await.unwrap(), read, "and again");
}

/// Another implementation of the same standard agrees.
#[tokio::test]
async fn a_cookie_is_a_jwt() {
    let keys = Keys::with(1);
    let made = cookies(&keys, &clock()).await.issue(&name("some"), "").unwrap();
    let secret = keys.0.lock().unwrap()[0].cookie_secret.clone();
    let mut validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::HS512);
    validation.validate_exp = false;
    let key = jsonwebtoken::DecodingKey::from_secret(&secret);
    jsonwebtoken::decode::<Value>(&made, &key, &validation).unwrap();
}

#[tokio::test]
async fn bad_cookies_are_distinguished() {
    let (keys, clock) = (Keys::with(1), clock());
    let cookies = cookies(&keys, &clock).await;
    let good = cookies.issue(&name("some"), "").unwrap();
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let mut claims = part(&good, 1);
    claims["key"]["devname"] = "somebody else".into();
    let forged = URL_SAFE_NO_PAD.encode(claims.to_string());
    let header = good.split_once('.').unwrap().0;
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let own_claims = signed.split_once('.').unwrap().1;
    let verify = async |cookie: &str| {
        let error = cookies.verify(cookie).await.unwrap_err();
        assert_eq!(error.code(), Code::Unauthenticated);
        error.to_string()
    };
    let failed = |why: &str| format!("VerifyCookie failed: {why}");
    assert_eq!(verify("").await, failed("missing cookie"));
    for unreadable in [
        "x",
        "a.b.c",
        &"x".repeat(100_000),
        &format!("{signed}."),
        &format!("{none}.{own_claims}.{signature}"),
        &format!("{none}.{own_claims}."),
    ] {
        let answered = verify(unreadable).await;
        let short = unreadable.chars().take(20).collect::<String>();
        assert!(
            answered.ends_with("cannot be read") || answered.ends_with("is wrong"),
            "{short}: {answered}"
        );
    }
    let wrong = failed("the signature of the cookie is wrong");
    assert_eq!(verify(&format!("{header}.{forged}.{signature}")).await, wrong);
    assert_eq!(verify(&format!("{signed}.AAAA")).await, wrong);
    clock.advance(DAY - Duration::from_secs(1));
    assert!(cookies.verify(&good).await.is_ok());
    assert_eq!(verify(&format!("{signed}.AAAA")).await, wrong, "also of one that was seen");
    assert_eq!(verify(&format!("{header}.{forged}.{signature}")).await, wrong);
    clock.advance(Duration::from_secs(1));
    assert_eq!(verify(&good).await, failed("the cookie has expired"));
}

/// As the original's test of its keys: what one engine signs with a newer key
/// the other learns to read, though not at every word of a stranger.
#[tokio::test]
async fn engines_read_each_others_cookies_across_rotations() {
    let (keys, clock) = (Keys::with(2), clock());
    let older = cookies(&keys, &clock).await;
    assert_eq!(older.newest(), Some(2));
    let some = name("some");
    let before = older.issue(&some, "").unwrap();
    keys.rotate();
    let newer = cookies(&keys, &clock).await;
    assert_eq!(newer.newest(), Some(3));
    assert!(newer.verify(&before).await.is_ok(), "the old key is still good");
    let after = newer.issue(&some, "").unwrap();
    assert_eq!(part(&after, 1)["key"]["kid"], 3);
    assert!(older.verify(&after).await.is_ok(), "it looked for the key");
    assert_eq!(older.newest(), Some(3));

    keys.rotate();
    newer.load().await.unwrap();
    let later = newer.issue(&some, "").unwrap();
    let error = older.verify(&later).await.unwrap_err().to_string();
    assert!(error.contains("not known"), "it looked a moment ago: {error}");
    clock.advance(Duration::from_secs(5));
    assert!(older.verify(&later).await.is_ok());

    assert!(older.verify(&before).await.is_ok(), "seen with the keys of before");
    keys.0.lock().unwrap().remove(0);
    keys.0.lock().unwrap().remove(0);
    older.load().await.unwrap();
    assert!(older.verify(&before).await.is_err(), "the key is gone, and what it signed");
}

#[tokio::test]
async fn without_a_key_nobody_is_let_in() {
    let engine = engine_with(Settings::default(), Keys::default(), clock()).await;
    let some = name("some");
    fill(&engine, &[app(&some)], &[]);
    let error = engine.register(&register(&some), "").unwrap_err();
    assert_eq!((error.code(), &*error.to_string()), (Code::Internal, "no signing key"));
}

/// Two engines, one store: they have the same keys, and a new one in time.
#[tokio::test]
async fn keys_in_the_store_are_everybodys() {
    let folder = tempfile::tempdir().unwrap();
    let store: SharedStore =
        Embedded::open(folder.path().join("store"), Default::default()).await.unwrap();
    let clock = clock();
    let policy = Policy { rotate: 7 * DAY, lifetime: DAY };
    let keys = || StoreKeys::new(Arc::clone(&store), policy, Arc::new(clock.clone()));
    let (one, two) = (keys(), keys());
    let first = one.keys().await.unwrap();
    assert_eq!(first, two.keys().await.unwrap());
    assert_eq!(first.len(), 1);
    assert!(first[0].cookie_secret.len() == 64 && !format!("{first:?}").contains("[0"));
    clock.advance(7 * DAY);
    let both = two.keys().await.unwrap();
    assert_eq!(both, one.keys().await.unwrap());
    assert_eq!(both.iter().map(|key| key.version).collect::<Vec<_>>(), [1, 2]);
    assert_ne!(both[0].cookie_secret, both[1].cookie_secret);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_group_takes_the_word_of_its_members() {
    let engine = engine_with(Settings::default(), Keys::with(1), clock()).await;
    let some = name("some");
    let request = DynamicLocGroupRequest { lg_id: 7, ..DynamicLocGroupRequest::default() };
    let reply = engine.join_group(&session(&some), &request).unwrap();
    assert_eq!(reply.status(), ReplyStatus::RsSuccess);
    let message = DlgMessage {
        lg_id: 7,
        group_cookie: reply.group_cookie.clone(),
        message_id: 42,
        ..DlgMessage::default()
    };
    let answer = engine.send_to_group(&message).await.unwrap();
    assert_eq!((answer.ack_id, answer.group_cookie), (42, reply.group_cookie.clone()));
    let elsewhere = DlgMessage { lg_id: 8, ..message.clone() };
    assert_eq!(engine.send_to_group(&elsewhere).await.unwrap_err().code(), Code::PermissionDenied);
    let nobody = DlgMessage { group_cookie: String::new(), ..message.clone() };
    assert_eq!(engine.send_to_group(&nobody).await.unwrap_err().code(), Code::Unauthenticated);
    let session = engine.cookies().issue(&some, "").unwrap();
    let other_kind = DlgMessage { group_cookie: session, ..message };
    assert_eq!(engine.send_to_group(&other_kind).await.unwrap_err().code(), Code::Unauthenticated);
    assert!(engine.cookies().verify(&reply.group_cookie).await.is_err(), "nor the other way");
}
