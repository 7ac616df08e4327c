//! Cookies that were seen to be good, so that a device that asks again does
//! not cost another signature.
//!
//! They belong to a set of keys and go with it. How long a cookie is good is
//! looked at every time; who shows it must show its whole signature.

use std::{collections::HashMap, sync::Arc};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use parking_lot::Mutex;

use crate::cookie::Session;

/// Number of shards with a lock each, so that calls seldom wait for each other.
const SHARDS: usize = 16;
/// Maximum number of cookies in the newer half of a shard. With all halves full
/// it is about 10 MB.
const MAX_ENTRIES: usize = 512;

struct VerifiedCookie {
    signature: Box<str>,
    end: i64,
    session: Arc<Session>,
}

/// A part. When the newer half is full it becomes the older one, and those
/// that nobody showed meanwhile are forgotten.
#[derive(Default)]
struct Part {
    newer: HashMap<Box<str>, VerifiedCookie>,
    older: HashMap<Box<str>, VerifiedCookie>,
}

impl Part {
    /// Returns what is known of a cookie without its signature.
    fn find(&mut self, signed: &str) -> Option<&VerifiedCookie> {
        if let Some((signed, known)) = self.older.remove_entry(signed) {
            self.insert(signed, known);
        }
        self.newer.get(signed)
    }

    fn insert(&mut self, signed: Box<str>, known: VerifiedCookie) {
        if self.newer.len() >= MAX_ENTRIES {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(signed, known);
    }
}

/// Cookies that are good.
#[derive(Default)]
pub(crate) struct Verified([Mutex<Part>; SHARDS]);

impl Verified {
    /// Returns the session of a cookie that was seen before and has not ended.
    pub(crate) fn find(&self, cookie: &str, now: i64) -> Option<Arc<Session>> {
        let (signed, signature) = cookie.rsplit_once('.')?;
        let mut part = self.part(signature).lock();
        let known = part.find(signed)?;
        let same = verify_slices_are_equal(known.signature.as_bytes(), signature.as_bytes());
        (same.is_ok() && now < known.end).then(|| Arc::clone(&known.session))
    }

    /// Remembers a cookie that is good until then.
    pub(crate) fn insert(&self, cookie: &str, end: i64, session: &Arc<Session>) {
        let Some((signed, signature)) = cookie.rsplit_once('.') else { return };
        let known =
            VerifiedCookie { signature: signature.into(), end, session: Arc::clone(session) };
        self.part(signature).lock().insert(signed.into(), known);
    }

    /// A signature is as good as chance.
    fn part(&self, signature: &str) -> &Mutex<Part> {
        let chance = signature.bytes().next().unwrap_or(0);
        &self.0[usize::from(chance) % SHARDS]
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let parts = self.0.iter().map(Mutex::lock);
        parts.map(|part| part.newer.len() + part.older.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::table::AppName;

    fn session(name: usize) -> Arc<Session> {
        let app = AppName::new("dev", format!("app {name}"), "1.0");
        Arc::new(Session { app, peer: String::new() })
    }

    #[test]
    fn it_is_the_whole_cookie_that_is_good_and_until_its_end() {
        let verified = Verified::default();
        verified.insert("head.claims.signature", 100, &session(1));
        assert_eq!(verified.find("head.claims.signature", 99), Some(session(1)));
        assert_eq!(verified.find("head.claims.signature", 100), None, "it has ended");
        for other in [
            "head.claims.signaturE",
            "head.claims.s1gnature",
            "head.claims.signatur",
            "head.claims.",
            "head.claimz.signature",
            "head.claims",
            "",
        ] {
            assert_eq!(verified.find(other, 99), None, "{other}");
        }
    }

    #[test]
    fn however_many_there_are_only_so_many_are_remembered() {
        let verified = Verified::default();
        let cookie = |number: usize| format!("head.claims{number}.{}", number * 7919 % 1000);
        let shown_all_the_time = cookie(0);
        verified.insert(&shown_all_the_time, 100, &session(0));
        for number in 1..100_000 {
            verified.insert(&cookie(number), 100, &session(number));
            let found = verified.find(&shown_all_the_time, 1);
            assert_eq!(found.unwrap().app.name, "app 0", "after {number}");
        }
        assert!(verified.len() <= 2 * MAX_ENTRIES * SHARDS, "{}", verified.len());
        assert_eq!(verified.find(&cookie(1), 1), None);
        assert_eq!(verified.find(&cookie(99_999), 1), Some(session(99_999)));
    }
}
