//! Sealing of secrets that are stored: a copy of what is sealed is not a copy of
//! the secret, and nobody changes it unseen.

use std::fmt;

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Salt},
};
use zeroize::Zeroizing;

/// Length of a key.
pub const KEY_LEN: usize = 32;

/// Failure to open something with this key, or to seal it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not sealed with this key, or damaged")]
pub struct Broken;

/// Seals with one key.
pub struct Sealer(LessSafeKey);

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(…)")
    }
}

/// Length of what is derived.
struct Length;

impl KeyType for Length {
    fn len(&self) -> usize {
        KEY_LEN
    }
}

impl Sealer {
    /// Uses that key of 32 bytes.
    pub fn new(key: &[u8]) -> Result<Self, Broken> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| Broken)?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Uses a key that is made of a secret with as much chance in it as a key
    /// has, for one purpose.
    pub fn derive(secret: &[u8], purpose: &str) -> Result<Self, Broken> {
        let mut key = Zeroizing::new([0; KEY_LEN]);
        let purpose = [purpose.as_bytes()];
        let extracted = Salt::new(HKDF_SHA256, &[]).extract(secret);
        let expanded = extracted.expand(&purpose, Length).map_err(|_| Broken)?;
        expanded.fill(key.as_mut_slice()).map_err(|_| Broken)?;
        Self::new(key.as_slice())
    }

    /// Seals the bytes for that owner, and no other.
    pub fn seal(&self, owner: &str, mut plain: Zeroizing<Vec<u8>>) -> Result<Vec<u8>, Broken> {
        let nonce: [u8; NONCE_LEN] = rand::random();
        let tag = self.0.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(owner.as_bytes()),
            &mut plain,
        );
        let tag = tag.map_err(|_| Broken)?;
        Ok([nonce.as_slice(), &plain, tag.as_ref()].concat())
    }

    /// Opens what was sealed for that owner.
    pub fn open(&self, owner: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Broken> {
        let (nonce, rest) = sealed.split_at_checked(NONCE_LEN).ok_or(Broken)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Broken)?;
        let mut bytes = Zeroizing::new(rest.to_vec());
        let opened = self.0.open_in_place(nonce, Aad::from(owner.as_bytes()), &mut bytes);
        let length = opened.map_err(|_| Broken)?.len();
        bytes.truncate(length);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_sealed_opens_for_its_owner_with_its_key_alone() {
        let sealer = Sealer::derive(b"secret", "a test").unwrap();
        let sealed = sealer.seal("owner", Zeroizing::new(b"canary".to_vec())).unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"canary"));
        assert_eq!(**sealer.open("owner", &sealed).unwrap(), *b"canary");
        assert_eq!(sealer.open("another", &sealed), Err(Broken));
        for other in [("other", "a test"), ("secret", "another test")] {
            let other = Sealer::derive(other.0.as_bytes(), other.1).unwrap();
            assert_eq!(other.open("owner", &sealed), Err(Broken));
        }
        let mut changed = sealed.clone();
        changed[20] ^= 1;
        assert_eq!(sealer.open("owner", &changed), Err(Broken));
        assert_eq!(sealer.open("owner", &sealed[..11]), Err(Broken));
    }
}
