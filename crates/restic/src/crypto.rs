//! Cryptography of a repository: AES-256 in counter mode, and
//! Poly1305-AES over what comes out.

use std::fmt;

use aws_lc_rs::{
    cipher::{
        AES_128, AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
        UnboundCipherKey,
    },
    iv::FixedLength,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use poly1305::{Poly1305, universal_hash::KeyInit};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The length of the random value in front of every ciphertext.
const NONCE: usize = 16;

/// The length of the authenticator behind it.
const TAG: usize = 16;

/// By how much a sealed text is longer than the plain one.
pub(crate) const OVERHEAD: usize = NONCE + TAG;

/// A password or a key of an object store. Never shown, wiped when dropped.
#[derive(Clone, Hash, Zeroize, ZeroizeOnDrop)]
pub struct Secret(String);

impl Secret {
    /// Takes the secret over.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// It was not sealed with this key, or something was changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the authenticator does not match")]
pub(crate) struct Forged;

/// Seals and opens. Wiped when dropped: the raw bytes by us, what the cipher
/// makes of them by the library.
pub(crate) struct Key {
    raw: RawKey,
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
    nonce: EncryptingKey,
}

/// The 64 bytes a key is made of.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct RawKey {
    encrypt: [u8; 32],
    mac_k: [u8; 16],
    mac_r: [u8; 16],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Form of a key inside a key file.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct KeyDocument {
    mac: MacDocument,
    encrypt: String,
}

#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct MacDocument {
    k: String,
    r: String,
}

impl Key {
    /// A new one.
    pub(crate) fn random() -> Self {
        let mut bytes = Zeroizing::new([0; 64]);
        rand::fill(&mut bytes[..]);
        Self::from_bytes(&bytes)
    }

    /// Splits 64 bytes as restic does: cipher, authenticator's `k`, its `r`.
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Self {
        let mut raw = RawKey { encrypt: [0; 32], mac_k: [0; 16], mac_r: [0; 16] };
        raw.encrypt.copy_from_slice(&bytes[..32]);
        raw.mac_k.copy_from_slice(&bytes[32..48]);
        raw.mac_r.copy_from_slice(&bytes[48..]);
        clamp(&mut raw.mac_r);
        Self::from_raw(raw)
    }

    /// The same key once more.
    pub(crate) fn copy(&self) -> Self {
        Self::from_raw(self.raw.clone())
    }

    fn from_raw(raw: RawKey) -> Self {
        // The lengths fit by type, which is all that these can object to.
        #[allow(clippy::expect_used)]
        let cipher = || UnboundCipherKey::new(&AES_256, &raw.encrypt).expect("32 bytes");
        #[allow(clippy::expect_used)]
        let key = Self {
            encrypt: EncryptingKey::ctr(cipher()).expect("AES-256 has a counter mode"),
            decrypt: DecryptingKey::ctr(cipher()).expect("AES-256 has a counter mode"),
            nonce: EncryptingKey::ctr(
                UnboundCipherKey::new(&AES_128, &raw.mac_k).expect("16 bytes"),
            )
            .expect("AES-128 has a counter mode"),
            raw,
        };
        key
    }

    /// Reads the document inside a key file.
    pub(crate) fn from_json(text: &[u8]) -> Option<Self> {
        let document: KeyDocument = serde_json::from_slice(text).ok()?;
        let decode = |text: &str| BASE64_STANDARD.decode(text).ok().map(Zeroizing::new);
        let raw = RawKey {
            encrypt: decode(&document.encrypt)?.as_slice().try_into().ok()?,
            mac_k: decode(&document.mac.k)?.as_slice().try_into().ok()?,
            mac_r: decode(&document.mac.r)?.as_slice().try_into().ok()?,
        };
        Some(Self::from_raw(raw))
    }

    /// Writes the document inside a key file.
    pub(crate) fn to_json(&self) -> Zeroizing<Vec<u8>> {
        let document = KeyDocument {
            mac: MacDocument {
                k: BASE64_STANDARD.encode(self.raw.mac_k),
                r: BASE64_STANDARD.encode(self.raw.mac_r),
            },
            encrypt: BASE64_STANDARD.encode(self.raw.encrypt),
        };
        Zeroizing::new(serde_json::to_vec(&document).unwrap_or_default())
    }

    /// Adds nonce, ciphertext and authenticator to `out`.
    pub(crate) fn seal_into(&self, plain: &[u8], out: &mut Vec<u8>) {
        let mut nonce = [0; NONCE];
        rand::fill(&mut nonce);
        out.reserve(plain.len() + OVERHEAD);
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        self.counter_mode(&nonce, &mut out[start..]);
        let tag = self.tag(&nonce, &out[start..]);
        out.extend_from_slice(&tag);
    }

    /// The same as a text of its own.
    pub(crate) fn seal(&self, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.seal_into(plain, &mut out);
        out
    }

    /// Opens in place: what is left in the returned slice is the plain text.
    pub(crate) fn open_in_place<'a>(&self, sealed: &'a mut [u8]) -> Result<&'a mut [u8], Forged> {
        let length = sealed.len().checked_sub(OVERHEAD).ok_or(Forged)?;
        let (nonce, rest) = sealed.split_at_mut(NONCE);
        let (text, tag) = rest.split_at_mut(length);
        let nonce: &[u8; NONCE] = (&*nonce).try_into().map_err(|_| Forged)?;
        let expected = self.tag(nonce, text);
        aws_lc_rs::constant_time::verify_slices_are_equal(&expected, tag).map_err(|_| Forged)?;
        let context = DecryptionContext::Iv128(FixedLength::from(nonce));
        self.decrypt.decrypt(text, context).map_err(|_| Forged)?;
        Ok(text)
    }

    /// Opens a copy.
    pub(crate) fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, Forged> {
        let mut copy = sealed.to_vec();
        let length = self.open_in_place(&mut copy)?.len();
        copy.drain(..NONCE);
        copy.truncate(length);
        Ok(copy)
    }

    #[allow(clippy::expect_used)]
    fn counter_mode(&self, nonce: &[u8; NONCE], text: &mut [u8]) {
        let context = EncryptionContext::Iv128(FixedLength::from(nonce));
        self.encrypt.less_safe_encrypt(text, context).expect("counter mode takes any length");
    }

    fn tag(&self, nonce: &[u8; NONCE], text: &[u8]) -> [u8; TAG] {
        // One block of counter mode over zeros is the encrypted nonce, which
        // Poly1305-AES adds at the end.
        let mut pad = [0; 16];
        let context = EncryptionContext::Iv128(FixedLength::from(nonce));
        #[allow(clippy::expect_used)]
        self.nonce.less_safe_encrypt(&mut pad, context).expect("counter mode takes any length");
        let mut key = Zeroizing::new([0; 32]);
        key[..16].copy_from_slice(&self.raw.mac_r);
        key[16..].copy_from_slice(&pad);
        let mac = Poly1305::new_from_slice(&key[..]).map(|mac| mac.compute_unpadded(text));
        mac.map(|tag| tag.into()).unwrap_or_default()
    }
}

/// Clears the bits of `r` that Poly1305 does not use, as stock keys have it.
fn clamp(r: &mut [u8; 16]) {
    for index in [3, 7, 11, 15] {
        r[index] &= 15;
    }
    for index in [4, 8, 12] {
        r[index] &= 252;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    /// The vectors of the paper that defines Poly1305-AES.
    #[test]
    fn tags_are_those_of_the_paper() {
        let cases = [
            (
                "ec074c835580741701425b623235add6",
                "851fc40c3467ac0be05cc20404f3f700",
                "fb447350c4e868c52ac3275cf9d4327e",
                "f3f6",
                "f4c633c3044fc145f84f335cb81953de",
            ),
            (
                "75deaa25c09f208e1dc4ce6b5cad3fbf",
                "a0f3080000f46400d0c7e9076c834403",
                "61ee09218d29b0aaed7e154a2c5509cc",
                "",
                "dd3fab2251f11ac759f0887129cc2ee7",
            ),
        ];
        for (k, r, nonce, text, tag) in cases {
            let mut bytes = [0; 64];
            hex::decode_to_slice(k, &mut bytes[32..48]).unwrap();
            hex::decode_to_slice(r, &mut bytes[48..]).unwrap();
            let mut number = [0; 16];
            hex::decode_to_slice(nonce, &mut number).unwrap();
            let found = Key::from_bytes(&bytes).tag(&number, &hex::decode(text).unwrap());
            assert_eq!(hex::encode(found), tag);
        }
    }

    #[test]
    fn what_is_sealed_opens_and_any_changed_bit_is_seen() {
        let key = Key::random();
        for length in [0, 1, 15, 16, 17, 4096] {
            let plain = vec![7; length];
            let sealed = key.seal(&plain);
            assert_eq!(sealed.len(), length + OVERHEAD);
            assert_eq!(key.open(&sealed).unwrap(), plain);
            for index in 0..sealed.len().min(64) {
                let mut changed = sealed.clone();
                changed[index] ^= 1;
                assert_eq!(key.open(&changed), Err(Forged));
            }
        }
        assert_eq!(key.open(&[0; OVERHEAD - 1]), Err(Forged));
        assert_eq!(Key::random().open(&key.seal(b"text")), Err(Forged));
    }

    #[test]
    fn a_key_survives_its_document() {
        let key = Key::random();
        let again = Key::from_json(&key.to_json()).unwrap();
        assert_eq!(again.open(&key.seal(b"text")).unwrap(), b"text");
        assert!(Key::from_json(b"{}").is_none());
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?} {:?}", Secret::new("canary"), Key::random());
        assert_eq!(shown, "Secret(…) Key(…)");
    }
}
