//! Tokens of developers.

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der},
    rsa::{KeyPair, KeySize},
    signature::KeyPair as _,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use selvage_api::{Code, distributed_match_engine::RegisterClientRequest, edgeproto::App};
use selvage_dme::AppName;
use serde_json::{Value, json};

use crate::lab::{app, engine, fill, name, register};

const NOW: i64 = 1_800_000_000;

struct Developer {
    pem: String,
    ssh: String,
    key: EncodingKey,
}

fn developer() -> Developer {
    let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let private: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let pem = |label: &str, der: &[u8]| {
        let text = STANDARD.encode(der);
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    };
    let mut blob = Vec::new();
    let modulus = pair.public_key().modulus();
    let modulus = [&[0], modulus.big_endian_without_leading_zero()].concat();
    let exponent = pair.public_key().exponent();
    for field in [b"ssh-rsa", exponent.big_endian_without_leading_zero(), &modulus] {
        blob.extend(u32::try_from(field.len()).unwrap().to_be_bytes());
        blob.extend(field);
    }
    Developer {
        pem: pem("PUBLIC KEY", public.as_ref()),
        ssh: format!("ssh-rsa {} somebody@example", STANDARD.encode(blob)),
        key: EncodingKey::from_rsa_pem(pem("PRIVATE KEY", private.as_ref()).as_bytes()).unwrap(),
    }
}

fn claims(app: &AppName) -> Value {
    json!({
        "devname": app.developer,
        "appname": app.name,
        "appvers": app.version,
        "iat": NOW - 10,
        "exp": NOW + 10,
    })
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

#[tokio::test]
async fn only_those_whom_the_developer_sends_are_let_in() {
    let (engine, mine, other) = (engine().await, developer(), developer());
    let (locked, ssh, open, broken) = (name("locked"), name("ssh"), name("open"), name("broken"));
    let keyed = |name: &AppName, key: &str| App { auth_public_key: key.into(), ..app(name) };
    let apps =
        [keyed(&locked, &mine.pem), keyed(&ssh, &mine.ssh), app(&open), keyed(&broken, "key")];
    fill(&engine, &apps, &[]);
    let signed = |who: &Developer, claims: &Value| {
        encode(&Header::new(Algorithm::RS256), claims, &who.key).unwrap()
    };
    let tried = |app: &AppName, token: &str| {
        let request = RegisterClientRequest { auth_token: token.into(), ..register(app) };
        engine.register(&request, "").map(drop).map_err(|e| (e.code(), e.to_string()))
    };
    let good = claims(&locked);
    assert_eq!(tried(&locked, &signed(&mine, &good)), Ok(()));
    assert_eq!(tried(&ssh, &signed(&mine, &claims(&ssh))), Ok(()));
    let mut endless = good.clone();
    endless.as_object_mut().unwrap().remove("exp");
    assert_eq!(tried(&locked, &signed(&mine, &endless)), Ok(()));
    assert_eq!(tried(&open, ""), Ok(()));

    let refused = |text: &str| Err((Code::Unauthenticated, text.to_owned()));
    let failed = |why: &str| refused(&format!("failed to verify token - {why}"));
    let missing = Err((Code::InvalidArgument, "No authtoken received".to_owned()));
    assert_eq!(tried(&locked, ""), missing);
    assert_eq!(tried(&open, "x"), refused("No authkey found to validate token"));
    let unsigned = failed("the token cannot be read, or is not signed by the developer");
    assert_eq!(tried(&locked, "x"), unsigned);
    assert_eq!(tried(&locked, &signed(&other, &good)), unsigned);
    let shared = EncodingKey::from_secret(mine.pem.as_bytes());
    let confused = encode(&Header::new(Algorithm::HS256), &good, &shared).unwrap();
    assert_eq!(tried(&locked, &confused), unsigned, "a public key is no shared secret");
    assert_eq!(tried(&broken, "x"), failed("the public key of the app cannot be read"));
    for (claim, value, why) in [
        ("devname", json!("somebody"), "token developer mismatch"),
        ("appname", json!("other"), "token appname mismatch"),
        ("appvers", json!("2.0"), "token appvers mismatch"),
        ("exp", json!(NOW), "token is expired"),
        ("nbf", json!(NOW + 1), "token is not valid yet"),
    ] {
        let token = signed(&mine, &with(good.clone(), claim, value));
        assert_eq!(tried(&locked, &token), failed(why));
    }
}
