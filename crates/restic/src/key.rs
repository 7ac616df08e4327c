//! Key files: the master key, sealed with what scrypt makes of a password.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{Secret, crypto::Key};

/// Cost that stock restic takes where it does not measure: about a tenth of a
/// second and 32 MiB.
const COST: Cost = Cost { n: 1 << 15, r: 8, p: 1 };

/// More memory than this nobody asks for who means well.
const MOST_MEMORY: u64 = 1 << 30;

struct Cost {
    n: u64,
    r: u32,
    p: u32,
}

/// A key file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyFile {
    #[serde(default)]
    created: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    hostname: String,
    kdf: String,
    #[serde(rename = "N")]
    n: u64,
    r: u32,
    p: u32,
    salt: String,
    data: String,
}

impl KeyFile {
    /// Seals a master key.
    pub(crate) fn seal(
        master: &Key,
        password: &Secret,
        created: Timestamp,
        hostname: &str,
        username: &str,
    ) -> Option<Self> {
        let salt: [u8; 64] = rand::random();
        let user = derive(password, &salt, &COST)?;
        Some(Self {
            created: created.to_string(),
            username: username.to_owned(),
            hostname: hostname.to_owned(),
            kdf: "scrypt".to_owned(),
            n: COST.n,
            r: COST.r,
            p: COST.p,
            salt: BASE64_STANDARD.encode(salt),
            data: BASE64_STANDARD.encode(user.seal(&master.to_json())),
        })
    }

    /// Returns machine, user and time of its making.
    pub(crate) fn into_origin(self) -> (String, String, Option<Timestamp>) {
        let created = self.created.parse().ok();
        (self.hostname, self.username, created)
    }

    /// The master key, if the password is right and the file whole.
    pub(crate) fn open(&self, password: &Secret) -> Option<Key> {
        if self.kdf != "scrypt" {
            return None;
        }
        let salt = BASE64_STANDARD.decode(&self.salt).ok()?;
        let data = BASE64_STANDARD.decode(&self.data).ok()?;
        let user = derive(password, &salt, &Cost { n: self.n, r: self.r, p: self.p })?;
        let text = Zeroizing::new(user.open(&data).ok()?);
        Key::from_json(&text)
    }
}

fn derive(password: &Secret, salt: &[u8], cost: &Cost) -> Option<Key> {
    let memory = cost.n.checked_mul(128)?.checked_mul(u64::from(cost.r))?;
    if !cost.n.is_power_of_two() || cost.n < 2 || memory > MOST_MEMORY {
        return None;
    }
    let log = u8::try_from(cost.n.trailing_zeros()).ok()?;
    let params = scrypt::Params::new(log, cost.r, cost.p).ok()?;
    let mut bytes = Zeroizing::new([0; 64]);
    scrypt::scrypt(password.expose().as_bytes(), salt, &params, &mut bytes[..]).ok()?;
    Some(Key::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn the_right_password_opens_and_no_other() {
        let master = Key::random();
        let file =
            KeyFile::seal(&master, &Secret::new("right"), Timestamp::UNIX_EPOCH, "h", "u").unwrap();
        let text = serde_json::to_string(&file).unwrap();
        let file: KeyFile = serde_json::from_str(&text).unwrap();
        let opened = file.open(&Secret::new("right")).unwrap();
        assert_eq!(opened.open(&master.seal(b"text")).unwrap(), b"text");
        assert!(file.open(&Secret::new("wrong")).is_none());
    }

    #[test]
    fn a_greedy_or_senseless_cost_is_refused() {
        for (n, r, p) in [(1 << 40, 8, 1), (0, 8, 1), (3, 8, 1), (1 << 15, 0, 1), (16, 8, 0)] {
            assert!(derive(&Secret::new("p"), b"salt", &Cost { n, r, p }).is_none(), "{n} {r}");
        }
    }
}
