//! Names of what is made: a part to read, and a digest that tells them apart.

use selvage_api::object::Key;
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The canonical text of a key.
pub(super) fn text<K: prost::Message + prost::Name>(key: &K) -> Result<String> {
    let key = Key::from_message(key).map_err(|error| Error::invalid("key", error.to_string()))?;
    Ok(key.to_string())
}

/// The first digits of the digest of a text.
pub(super) fn digest(text: &str, digits: usize) -> String {
    let mut digest = hex::encode(Sha256::digest(text.as_bytes()));
    digest.truncate(digits);
    digest
}

/// Of a name, letters, digits and single dashes, so many at most.
pub(super) fn readable(name: &str, most: usize) -> String {
    let mut out = String::new();
    for c in name.chars().flat_map(char::to_lowercase) {
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            _ if !out.is_empty() && !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    out.truncate(most);
    out.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_readable() {
        assert_eq!(readable("Hello, World & Co", 40), "hello-world-co");
        assert_eq!(readable("Hello, World", 6), "hello");
        assert_eq!(readable("日本", 40), "");
        assert_eq!(digest("", 8), "e3b0c442");
    }
}
