//! Checks an ID token. Nothing is taken on trust: not the algorithm, not the
//! key, not the claims.

use jiff::Timestamp;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header,
    jwk::{Jwk, KeyAlgorithm, PublicKeyUse},
};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

/// Claims of a token.
pub(crate) type Claims = Map<String, Value>;

/// Allowed difference between clocks, in seconds.
const LEEWAY: i64 = 60;
/// Keys that are tried when the token does not name one.
const MAX_CANDIDATES: usize = 8;
/// Signatures with a key that only the provider has. Neither `none` nor a
/// shared secret is among them.
const ACCEPTED: [AlgorithmFamily; 3] =
    [AlgorithmFamily::Rsa, AlgorithmFamily::Ec, AlgorithmFamily::Ed];

/// Values that a token must have.
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) client_id: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) now: Timestamp,
}

/// Reasons to refuse a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the ID token cannot be read or names an unknown algorithm")]
    Malformed,
    #[error("the ID token is signed with an algorithm that is not accepted")]
    Algorithm,
    #[error("the ID token is signed with a key that the provider does not publish")]
    UnknownKey,
    #[error("the signature of the ID token is wrong")]
    Signature,
    #[error("the ID token is from another issuer")]
    Issuer,
    #[error("the ID token is for another client")]
    Audience,
    #[error("the ID token has expired, or does not say when it does")]
    Expired,
    #[error("the ID token is not valid yet")]
    NotYet,
    #[error("the ID token belongs to another login")]
    Nonce,
    #[error("the ID token names no subject")]
    Subject,
}

/// The claims of a token that holds.
pub(crate) fn verify(
    token: &str,
    keys: &[Jwk],
    expected: &Expected<'_>,
) -> Result<Claims, TokenError> {
    let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
    // An extension that must be understood is one we do not know.
    if header.crit.is_some() {
        return Err(TokenError::Malformed);
    }
    if !ACCEPTED.contains(&header.alg.family()) {
        return Err(TokenError::Algorithm);
    }
    let claims = verify_signature(token, &header, keys)?;
    check_parties(&claims, expected)?;
    check_times(&claims, expected.now.as_second())?;
    let nonce = text(&claims, "nonce").ok_or(TokenError::Nonce)?;
    if !bool::from(nonce.as_bytes().ct_eq(expected.nonce.as_bytes())) {
        return Err(TokenError::Nonce);
    }
    match text(&claims, "sub") {
        Some(subject) if !subject.is_empty() && subject.len() <= 255 => Ok(claims),
        _ => Err(TokenError::Subject),
    }
}

fn verify_signature(token: &str, header: &Header, keys: &[Jwk]) -> Result<Claims, TokenError> {
    let candidates = keys.iter().filter(|key| fits(key, header)).take(MAX_CANDIDATES);
    let mut outcome = Err(TokenError::UnknownKey);
    for key in candidates {
        let Ok(key) = DecodingKey::from_jwk(key) else { continue };
        match decode::<Claims>(token, &key, &signature_only(header.alg)) {
            Ok(token) => return Ok(token.claims),
            Err(_) => outcome = Err(TokenError::Signature),
        }
    }
    outcome
}

/// Returns whether the token may have been signed with this key.
fn fits(key: &Jwk, header: &Header) -> bool {
    let named = match &header.kid {
        Some(kid) => key.common.key_id.as_ref() == Some(kid),
        None => true,
    };
    let for_signing =
        key.common.public_key_use.as_ref().is_none_or(|what| *what == PublicKeyUse::Signature);
    let for_algorithm =
        key.common.key_algorithm.is_none_or(|alg| alg == KeyAlgorithm::from(header.alg));
    let of_family = DecodingKey::from_jwk(key).is_ok_and(|key| key.family() == header.alg.family());
    named && for_signing && for_algorithm && of_family
}

/// The claims are checked below, by our own clock.
fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

fn check_parties(claims: &Claims, expected: &Expected<'_>) -> Result<(), TokenError> {
    if text(claims, "iss") != Some(expected.issuer) {
        return Err(TokenError::Issuer);
    }
    let audience: Vec<&str> = match claims.get("aud") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !audience.contains(&expected.client_id) {
        return Err(TokenError::Audience);
    }
    let party = text(claims, "azp");
    let others = audience.len() > 1;
    if (others && party.is_none()) || party.is_some_and(|party| party != expected.client_id) {
        return Err(TokenError::Audience);
    }
    Ok(())
}

fn check_times(claims: &Claims, now: i64) -> Result<(), TokenError> {
    let seconds = |name: &str| claims.get(name).and_then(Value::as_f64).map(|time| time as i64);
    let expires = seconds("exp").ok_or(TokenError::Expired)?;
    if now >= expires.saturating_add(LEEWAY) {
        return Err(TokenError::Expired);
    }
    for name in ["nbf", "iat"] {
        if claims.contains_key(name)
            && seconds(name).is_none_or(|time| time > now.saturating_add(LEEWAY))
        {
            return Err(TokenError::NotYet);
        }
    }
    Ok(())
}

/// A claim that is text.
pub(crate) fn text<'a>(claims: &'a Claims, name: &str) -> Option<&'a str> {
    claims.get(name).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    use jsonwebtoken::{EncodingKey, encode};
    use serde_json::json;

    use super::*;

    struct Signer {
        private: EncodingKey,
        public: Jwk,
    }

    fn signer(kid: &str) -> Signer {
        let pair = rcgen::KeyPair::generate().unwrap();
        let private = EncodingKey::from_ec_der(&pair.serialize_der());
        let mut public = Jwk::from_encoding_key(&private, Algorithm::ES256).unwrap();
        public.common.key_id = Some(kid.into());
        Signer { private, public }
    }

    fn claims() -> Value {
        json!({
            "iss": "https://id.example", "aud": "us", "sub": "1", "nonce": "n",
            "exp": 1_000_300, "iat": 1_000_000,
        })
    }

    fn sign(signer: &Signer, kid: Option<&str>, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = kid.map(str::to_owned);
        encode(&header, claims, &signer.private).unwrap()
    }

    fn check(token: &str, keys: &[Jwk]) -> Result<Claims, TokenError> {
        let expected = Expected {
            issuer: "https://id.example",
            client_id: "us",
            nonce: "n",
            now: Timestamp::from_second(1_000_010).unwrap(),
        };
        verify(token, keys, &expected)
    }

    #[test]
    fn a_sound_token_holds_with_and_without_a_key_id() {
        let signer = signer("k1");
        let keys = [signer.public.clone()];
        for kid in [Some("k1"), None] {
            let claims = check(&sign(&signer, kid, &claims()), &keys).unwrap();
            assert_eq!(text(&claims, "sub"), Some("1"));
        }
    }

    #[test]
    fn every_wrong_claim_is_refused_for_its_own_reason() {
        let signer = signer("k1");
        let keys = [signer.public.clone()];
        let cases = [
            ("iss", json!("https://id.example/"), TokenError::Issuer),
            ("aud", json!("them"), TokenError::Audience),
            ("aud", json!(["us", "them"]), TokenError::Audience),
            ("azp", json!("them"), TokenError::Audience),
            ("aud", Value::Null, TokenError::Audience),
            ("exp", json!(999_950), TokenError::Expired),
            ("exp", json!("soon"), TokenError::Expired),
            ("nbf", json!(1_000_100), TokenError::NotYet),
            ("iat", json!(1_000_100), TokenError::NotYet),
            ("nonce", json!("m"), TokenError::Nonce),
            ("nonce", json!(null), TokenError::Nonce),
            ("sub", json!(""), TokenError::Subject),
        ];
        for (name, value, wanted) in cases {
            let mut claims = claims();
            claims[name] = value.clone();
            let found = check(&sign(&signer, Some("k1"), &claims), &keys);
            assert_eq!(found.unwrap_err(), wanted, "{name} = {value}");
        }
        let mut shared = claims();
        shared["aud"] = json!(["us", "them"]);
        shared["azp"] = json!("us");
        assert!(check(&sign(&signer, Some("k1"), &shared), &keys).is_ok());
    }

    #[test]
    fn keys_must_be_published_and_the_right_ones() {
        let (ours, theirs) = (signer("k1"), signer("k1"));
        let keys = [ours.public.clone()];
        let forged = sign(&theirs, Some("k1"), &claims());
        assert_eq!(check(&forged, &keys).unwrap_err(), TokenError::Signature);
        let unknown = sign(&ours, Some("k2"), &claims());
        assert_eq!(check(&unknown, &keys).unwrap_err(), TokenError::UnknownKey);
        let mut for_encryption = ours.public.clone();
        for_encryption.common.public_key_use = Some(PublicKeyUse::Encryption);
        let good = sign(&ours, Some("k1"), &claims());
        assert_eq!(check(&good, &[for_encryption]).unwrap_err(), TokenError::UnknownKey);
    }

    #[test]
    fn unsigned_and_shared_secret_tokens_are_refused() {
        let keys = [signer("k1").public];
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        for alg in ["none", "None"] {
            let head = part(&json!({"alg": alg, "kid": "k1"}));
            let token = format!("{head}.{}.", part(&claims()));
            assert_eq!(check(&token, &keys).unwrap_err(), TokenError::Malformed);
        }
        // The public key as an HMAC secret: the classic confusion.
        let secret = EncodingKey::from_secret(serde_json::to_string(&keys[0]).unwrap().as_bytes());
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("k1".into());
        let token = encode(&header, &claims(), &secret).unwrap();
        assert_eq!(check(&token, &keys).unwrap_err(), TokenError::Algorithm);
        for text in ["", ".", "..", "a.b.c", "\u{0}"] {
            assert_eq!(check(text, &keys).unwrap_err(), TokenError::Malformed, "{text:?}");
        }
    }
}
