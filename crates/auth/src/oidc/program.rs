//! Logins that a program on a person's own machine began in a browser. The
//! browser goes back to a port of that machine with a code; only the program
//! that began has the verifier that makes a session of it.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use subtle::ConstantTimeEq;
use url::Url;
use zeroize::Zeroizing;

use super::people::Person;
use crate::{clock, secrets};

/// Time that a program has to trade its code.
const LIFETIME: Duration = Duration::from_secs(60);
/// Codes at the same time; there is one for a login at a provider that worked.
const MOST: usize = 1000;
/// Longest state that is handed back.
const LONGEST_STATE: usize = 128;
/// base64url of a SHA-256.
const CHALLENGE: usize = 43;

/// The parameters with which a program sends the browser here.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct ProgramQuery {
    port: Option<u16>,
    challenge: String,
    state: String,
}

/// A program that waits on 127.0.0.1.
#[derive(Clone)]
pub(crate) struct Program {
    port: u16,
    challenge: String,
    state: String,
}

impl Program {
    /// The program that asks, none for a page, or an error for what is neither.
    pub(crate) fn of(asked: ProgramQuery) -> Result<Option<Self>, &'static str> {
        let ProgramQuery { port, challenge, state } = asked;
        let Some(port) = port else {
            let none = challenge.is_empty() && state.is_empty();
            return if none { Ok(None) } else { Err("a program names its port") };
        };
        let plain =
            |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        if port == 0 || challenge.len() != CHALLENGE || !plain(&challenge) {
            return Err("a program gives its port and the challenge of its verifier");
        }
        if state.is_empty() || state.len() > LONGEST_STATE || !plain(&state) {
            return Err("a program gives a state of letters and digits");
        }
        Ok(Some(Self { port, challenge, state }))
    }

    /// Place to which the browser goes back. Never another machine than its own.
    pub(crate) fn place(&self, name: &str, value: &str) -> Option<Url> {
        let mut url = Url::parse(&format!("http://127.0.0.1:{}/", self.port)).ok()?;
        url.query_pairs_mut().append_pair(name, value).append_pair("state", &self.state);
        Some(url)
    }
}

/// A person whom a provider has vouched for.
pub(crate) struct Vouched {
    pub(crate) provider: String,
    pub(crate) person: Person,
    challenge: String,
    at: Timestamp,
}

/// Codes that are not traded yet, by their digest.
#[derive(Default)]
pub(crate) struct Codes(Mutex<HashMap<String, Vouched>>);

impl Codes {
    /// A code for the program; none where there are too many.
    pub(crate) fn make(
        &self,
        program: &Program,
        provider: &str,
        person: Person,
        now: Timestamp,
    ) -> Option<Zeroizing<String>> {
        let code = secrets::random_text();
        let mut codes = self.0.lock();
        codes.retain(|_, vouched| clock::since(now, vouched.at) < LIFETIME);
        if codes.len() >= MOST {
            return None;
        }
        let (provider, challenge) = (provider.to_owned(), program.challenge.clone());
        codes.insert(secrets::sha256_hex(&code), Vouched { provider, person, challenge, at: now });
        Some(code)
    }

    /// Takes the person of a code. It is gone whether the verifier fits or not.
    pub(crate) fn take(&self, code: &str, verifier: &str, now: Timestamp) -> Option<Vouched> {
        let vouched = self.0.lock().remove(&secrets::sha256_hex(code))?;
        let in_time = clock::since(now, vouched.at) < LIFETIME;
        let shown = secrets::s256(verifier);
        let fits: bool = shown.as_bytes().ct_eq(vouched.challenge.as_bytes()).into();
        (in_time && fits).then_some(vouched)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(port: Option<u16>, challenge: &str, state: &str) -> ProgramQuery {
        ProgramQuery { port, challenge: challenge.into(), state: state.into() }
    }

    #[test]
    fn a_program_is_on_this_machine_or_none() {
        let challenge = "a".repeat(43);
        assert!(Program::of(asked(None, "", "")).unwrap().is_none());
        let program = Program::of(asked(Some(7000), &challenge, "s1")).unwrap().unwrap();
        let place = program.place("code", "x&y").unwrap();
        assert_eq!(place.as_str(), "http://127.0.0.1:7000/?code=x%26y&state=s1");
        for wrong in [
            asked(None, &challenge, "s"),
            asked(Some(0), &challenge, "s"),
            asked(Some(1), "short", "s"),
            asked(Some(1), &challenge, ""),
            asked(Some(1), &challenge, "a b"),
            asked(Some(1), &challenge, &"s".repeat(129)),
        ] {
            assert!(Program::of(wrong).is_err());
        }
    }
}
