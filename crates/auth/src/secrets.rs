//! Random secrets and what is kept of them: a SHA-256, nothing else.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rand::RngExt;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Prefixes of all tokens of ours, for those who must know one when they see
/// it. Each kind has its own from here, so that none is left out.
pub const TOKEN_PREFIXES: [&str; 3] = ["slv_", "slvj_", "slvt_"];
const SESSION_PREFIX: &str = TOKEN_PREFIXES[0];
const JOIN_PREFIX: &str = TOKEN_PREFIXES[1];
const API_PREFIX: &str = TOKEN_PREFIXES[2];
/// Letters and digits that are not taken for one another.
const READABLE: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";

/// A password that the server made. Shown once, by whoever calls `expose`.
pub struct GeneratedPassword(Zeroizing<String>);

impl GeneratedPassword {
    /// One that was made, and kept, before.
    pub fn kept(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }

    /// Six groups of four, 118 bits.
    pub fn generate() -> Self {
        let mut random = rand::rng();
        let mut text = String::with_capacity(29);
        for group in 0..6 {
            if group > 0 {
                text.push('-');
            }
            let letter = |_| char::from(READABLE[random.random_range(0..READABLE.len())]);
            text.extend((0..4).map(letter));
        }
        Self(Zeroizing::new(text))
    }

    /// The text, for the one place that shows it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for GeneratedPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GeneratedPassword(…)")
    }
}

/// 256 random bits as text.
pub(crate) fn random_text() -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    rand::rng().fill(&mut bytes[..]);
    Zeroizing::new(URL_SAFE_NO_PAD.encode(&bytes[..]))
}

pub(crate) fn new_session_token() -> Zeroizing<String> {
    Zeroizing::new(format!("{SESSION_PREFIX}{}", *random_text()))
}

/// A token for a program.
pub(crate) fn new_api_token() -> Zeroizing<String> {
    Zeroizing::new(format!("{API_PREFIX}{}", *random_text()))
}

/// A join token, with the kind of machine it is for and the digest of the CA
/// at its end: a machine that is something else can tell before it spends it.
pub(crate) fn new_join_token(kind: &str, ca_sha256: &str) -> Zeroizing<String> {
    Zeroizing::new(format!("{JOIN_PREFIX}{}.{kind}.{ca_sha256}", *random_text()))
}

/// Digest under which a session token is stored; `None` for text that cannot be
/// one.
pub(crate) fn session_digest(token: &str) -> Option<String> {
    digest_of(token, SESSION_PREFIX)
}

/// Digest under which a program's token is stored; `None` for text that cannot be
/// one.
pub(crate) fn api_digest(token: &str) -> Option<String> {
    digest_of(token, API_PREFIX)
}

/// Digest under which a join token is stored; `None` for text that cannot be
/// one. Kind and digest of the CA at its end are for the machine alone.
pub(crate) fn join_digest(token: &str) -> Option<String> {
    let secret = selvage_kit::pki::without_pin(token);
    let secret = secret.split_once('.').map_or(secret, |(secret, _)| secret);
    digest_of(secret, JOIN_PREFIX)
}

/// Records are looked up by digest. That takes no secret-dependent time that
/// could be used: who varies a token moves its digest at random.
fn digest_of(token: &str, prefix: &str) -> Option<String> {
    // 32 bytes make 43 characters.
    (token.len() == prefix.len() + 43 && token.starts_with(prefix)).then(|| sha256_hex(token))
}

pub(crate) fn sha256_hex(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// PKCE's S256.
pub(crate) fn s256(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_differ_and_only_their_own_kind_has_a_digest() {
        let (first, second) = (new_session_token(), new_session_token());
        assert_ne!(*first, *second);
        assert_ne!(session_digest(&first), session_digest(&second));
        assert_eq!(session_digest(&first).unwrap().len(), 64);
        assert_eq!(join_digest(&first), None);
        let api = new_api_token();
        assert_eq!(api_digest(&first), None);
        assert_eq!((session_digest(&api), join_digest(&api)), (None, None));
        assert_eq!(api_digest(&api).unwrap().len(), 64);
        let join = new_join_token("node", &"ab".repeat(32));
        assert!(join.contains(".node.abab"));
        assert_eq!(session_digest(&join), None);
        assert_eq!(join_digest(&join), join_digest(&join[..48]));
        assert_eq!(join_digest(&join).unwrap().len(), 64);
        for wrong in ["", "slv_", &first[1..], &format!("{}x", *first)] {
            assert_eq!(session_digest(wrong), None);
        }
    }

    #[test]
    fn generated_passwords_satisfy_our_own_rule_and_hide() {
        let password = GeneratedPassword::generate();
        assert!(crate::names::check_password("password", password.expose()).is_ok());
        assert_ne!(password.expose(), GeneratedPassword::generate().expose());
        assert!(!format!("{password:?}").contains(password.expose()));
    }

    #[test]
    fn s256_is_that_of_the_rfc() {
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(s256(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
