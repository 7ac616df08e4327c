//! Keys in the store.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use prost::Message;
use selvage_api::selvage::matching::CookieKey;
use selvage_kit::clock::Clock;
use selvage_store::{Record, SharedStore, transact};

use super::KeySource;
use crate::error::{Error, Result};

/// Length of a key: the output of the hash function that uses it.
const KEY_BYTES: usize = 64;
/// Largest difference of the clocks of engines, and the time for which an
/// engine may sign with a key after there is a newer one.
const OVERLAP_LIMIT: Duration = Duration::from_secs(3600);

/// Rotation of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// A key signs for so long, then a new one does.
    pub rotate: Duration,
    /// Cookies that it signed are good for so long after.
    pub lifetime: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self { rotate: Duration::from_secs(7 * DAY), lifetime: Duration::from_secs(DAY) }
    }
}

/// All keys, in one record: they come and go together.
#[derive(Clone, PartialEq, Message)]
struct StoredKeys {
    #[prost(message, repeated, tag = "1")]
    keys: Vec<CookieKey>,
}

const ONLY: &str = "cookies";

impl Record for StoredKeys {
    const KIND: &'static str = "dme-keys";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        ONLY.to_owned()
    }
}

/// Keys in the store. Whoever asks for them when a new one is due makes it.
#[derive(Clone)]
pub struct StoreKeys {
    store: SharedStore,
    policy: Policy,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for StoreKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreKeys").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl StoreKeys {
    pub fn new(store: SharedStore, policy: Policy, clock: Arc<dyn Clock>) -> Self {
        Self { store, policy, clock }
    }
}

#[async_trait]
impl KeySource for StoreKeys {
    async fn keys(&self) -> Result<Vec<CookieKey>> {
        let now = self.clock.now();
        let mut secret = [0; KEY_BYTES];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| Error::Random)?;
        let (policy, secret) = (self.policy, &secret);
        let read = transact(&self.store, |tx| async move {
            let kept = tx.get::<StoredKeys>(ONLY).await?.unwrap_or_default();
            let keys = renewed(kept.keys.clone(), policy, now, secret);
            if keys != kept.keys {
                tx.put(&StoredKeys { keys: keys.clone() })?;
            }
            Ok::<_, Error>(keys)
        });
        Ok(read.await?.value)
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// The keys as they should be now.
fn renewed(
    mut keys: Vec<CookieKey>,
    policy: Policy,
    now: Timestamp,
    secret: &[u8],
) -> Vec<CookieKey> {
    let made = |key: &CookieKey| key.created.map_or(0, |created| created.seconds);
    let age = |key: &CookieKey| now.as_second().saturating_sub(made(key));
    if keys.last().is_none_or(|newest| age(newest) >= seconds(policy.rotate)) {
        let version = keys.last().map_or(1, |newest| newest.version.saturating_add(1));
        let created = Some(prost_types::Timestamp { seconds: now.as_second(), nanos: 0 });
        keys.push(CookieKey { version, cookie_secret: secret.to_vec(), created });
    }
    // A key is done with when the last cookie is that it signed before its
    // successor came.
    let end = seconds(policy.lifetime).saturating_add(seconds(OVERLAP_LIMIT));
    let done = keys.iter().skip(1).take_while(|successor| age(successor) > end).count();
    keys.drain(..done);
    keys
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn keys_come_when_due_and_go_when_nothing_they_signed_is_good() {
        let policy = Policy {
            rotate: Duration::from_secs(7 * 86_400),
            lifetime: Duration::from_secs(86_400),
        };
        let day = |number: i64| Timestamp::from_second(number * 86_400).unwrap();
        let versions = |keys: &[CookieKey]| keys.iter().map(|key| key.version).collect::<Vec<_>>();
        let first = renewed(Vec::new(), policy, day(0), b"a");
        assert_eq!(versions(&first), [1]);
        let same = renewed(first, policy, day(6), b"b");
        assert_eq!(versions(&same), [1]);
        let two = renewed(same, policy, day(7), b"b");
        assert_eq!(versions(&two), [1, 2]);
        let still = renewed(two, policy, day(8), b"c");
        assert_eq!(versions(&still), [1, 2], "a cookie of the last moment is a day old");
        let one = renewed(still, policy, day(9), b"c");
        assert_eq!(versions(&one), [2]);
        let late = renewed(one, policy, day(100), b"c");
        assert_eq!(versions(&late), [2, 3], "what was signed just before is good");
    }
}
