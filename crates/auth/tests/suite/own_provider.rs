//! A small OpenID Connect provider that can be told to misbehave.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Form, Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use parking_lot::Mutex;
use selvage_auth::{GroupGrant, OidcProvider};
use selvage_kit::identity::Secret;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Misbehaviour of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Twist {
    #[default]
    None,
    WrongNonce,
    WrongAudience,
    WrongIssuer,
    Expired,
    NotYetValid,
    Unsigned,
    SharedSecret,
    UnknownKey,
    Forged,
    NoIdToken,
    Huge,
    Redirect,
    ServerError,
    GroupsInUserInfo,
    UserInfoOfAnother,
}

struct Grant {
    challenge: String,
    nonce: String,
    redirect_uri: String,
}

struct Inner {
    address: SocketAddr,
    key: Mutex<(String, EncodingKey)>,
    twist: Mutex<Twist>,
    claims: Mutex<Value>,
    codes: Mutex<HashMap<String, Grant>>,
    key_fetches: AtomicUsize,
    now: i64,
}

#[derive(Clone)]
pub(crate) struct OwnProvider(Arc<Inner>);

fn new_key() -> EncodingKey {
    EncodingKey::from_ec_der(&rcgen::KeyPair::generate().unwrap().serialize_der())
}

impl OwnProvider {
    pub(crate) async fn start(now: jiff::Timestamp) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            address: listener.local_addr().unwrap(),
            key: Mutex::new(("k1".into(), new_key())),
            twist: Mutex::default(),
            claims: Mutex::new(json!({
                "sub": "subject-1", "preferred_username": "anna", "groups": ["ops"],
            })),
            codes: Mutex::default(),
            key_fetches: AtomicUsize::new(0),
            now: now.as_second(),
        };
        let provider = Self(Arc::new(inner));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .route("/userinfo", get(userinfo))
            .with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        provider
    }

    pub(crate) fn issuer(&self) -> String {
        format!("http://{}", self.0.address)
    }

    pub(crate) fn settings(&self) -> OidcProvider {
        let mut settings = OidcProvider::new("corp", self.issuer(), "selvage");
        settings.client_secret = Some(Secret::new("the client's secret"));
        settings.group_grants = vec![GroupGrant {
            group: "ops".into(),
            role: "operator".into(),
            organisation: "tmus".into(),
        }];
        settings
    }

    pub(crate) fn twist(&self, twist: Twist) {
        *self.0.twist.lock() = twist;
    }

    pub(crate) fn set_claim(&self, name: &str, value: Value) {
        self.0.claims.lock()[name] = value;
    }

    pub(crate) fn rotate_key(&self, kid: &str) {
        *self.0.key.lock() = (kid.into(), new_key());
    }

    pub(crate) fn key_fetches(&self) -> usize {
        self.0.key_fetches.load(Ordering::SeqCst)
    }

    /// The user agrees: a code for the request in `url`.
    pub(crate) fn approve(&self, url: &url::Url) -> String {
        let query: HashMap<_, _> = url.query_pairs().into_owned().collect();
        assert_eq!(query["response_type"], "code");
        assert_eq!(query["client_id"], "selvage");
        assert_eq!(query["code_challenge_method"], "S256");
        assert!(query["scope"].split(' ').any(|scope| scope == "openid"));
        let code = format!("code-{}", self.0.codes.lock().len());
        let grant = Grant {
            challenge: query["code_challenge"].clone(),
            nonce: query["nonce"].clone(),
            redirect_uri: query["redirect_uri"].clone(),
        };
        self.0.codes.lock().insert(code.clone(), grant);
        code
    }

    fn id_token(&self, nonce: &str) -> String {
        let twist = *self.0.twist.lock();
        let mut claims = self.0.claims.lock().clone();
        let defaults = json!({
            "iss": self.issuer(), "aud": "selvage", "nonce": nonce,
            "iat": self.0.now, "exp": self.0.now + 300,
        });
        claims.as_object_mut().unwrap().extend(defaults.as_object().unwrap().clone());
        match twist {
            Twist::WrongNonce => claims["nonce"] = json!("another"),
            Twist::WrongAudience => claims["aud"] = json!("another"),
            Twist::WrongIssuer => claims["iss"] = json!("http://another"),
            Twist::Expired => claims["exp"] = json!(self.0.now - 61),
            Twist::NotYetValid => claims["nbf"] = json!(self.0.now + 3600),
            Twist::GroupsInUserInfo | Twist::UserInfoOfAnother => {
                claims.as_object_mut().unwrap().remove("groups");
            }
            _ => {}
        }
        let (kid, key) = self.0.key.lock().clone();
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(if twist == Twist::UnknownKey { "unknown".into() } else { kid });
        match twist {
            Twist::Unsigned => {
                let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"k1"}"#);
                format!("{head}.{}.", URL_SAFE_NO_PAD.encode(claims.to_string()))
            }
            Twist::SharedSecret => {
                header.alg = Algorithm::HS256;
                let key = EncodingKey::from_secret(b"the client's secret");
                encode(&header, &claims, &key).unwrap()
            }
            Twist::Forged => encode(&header, &claims, &new_key()).unwrap(),
            _ => encode(&header, &claims, &key).unwrap(),
        }
    }
}

async fn discovery(State(provider): State<OwnProvider>) -> Json<Value> {
    let issuer = provider.issuer();
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize?tenant=1"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "userinfo_endpoint": format!("{issuer}/userinfo"),
    }))
}

async fn keys(State(provider): State<OwnProvider>) -> Json<Value> {
    provider.0.key_fetches.fetch_add(1, Ordering::SeqCst);
    let (kid, key) = provider.0.key.lock().clone();
    let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
    jwk.common.key_id = Some(kid);
    // A key of a kind that nobody knows must not get in the way.
    Json(json!({"keys": [{"kty": "PQ", "kid": "odd"}, jwk]}))
}

async fn token(
    State(provider): State<OwnProvider>,
    headers: HeaderMap,
    Form(form): Form<HashMap<String, String>>,
) -> Result<Json<Value>, (StatusCode, HeaderMap)> {
    let refused = (StatusCode::BAD_REQUEST, HeaderMap::new());
    let basic = STANDARD.encode("selvage:the+client%27s+secret");
    let authorised = headers.get("authorization").is_some_and(|v| *v == format!("Basic {basic}"));
    // A code is good once.
    let Some(grant) = provider.0.codes.lock().remove(&form["code"]) else { return Err(refused) };
    let proven = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"])) == grant.challenge;
    if !authorised || !proven || form["redirect_uri"] != grant.redirect_uri {
        return Err(refused);
    }
    let twist = *provider.0.twist.lock();
    match twist {
        Twist::ServerError => Err((StatusCode::INTERNAL_SERVER_ERROR, HeaderMap::new())),
        Twist::Redirect => {
            let mut headers = HeaderMap::new();
            headers.insert("location", format!("{}/keys", provider.issuer()).parse().unwrap());
            Err((StatusCode::TEMPORARY_REDIRECT, headers))
        }
        Twist::NoIdToken => Ok(Json(json!({"access_token": "a"}))),
        Twist::Huge => Ok(Json(json!({"id_token": "x".repeat(2 << 20)}))),
        _ => {
            let id_token = provider.id_token(&grant.nonce);
            Ok(Json(
                json!({"id_token": id_token, "access_token": "access", "token_type": "Bearer"}),
            ))
        }
    }
}

async fn userinfo(
    State(provider): State<OwnProvider>,
    headers: HeaderMap,
) -> Result<Json<Value>, StatusCode> {
    if headers.get("authorization").is_none_or(|value| value != "Bearer access") {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let other = *provider.0.twist.lock() == Twist::UserInfoOfAnother;
    let subject = if other { "subject-2" } else { "subject-1" };
    Ok(Json(json!({"sub": subject, "groups": ["ops"], "preferred_username": "mallory"})))
}
