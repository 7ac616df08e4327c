//! Packing of documents and blobs before they are sealed.

use std::io::Read;

use serde::{Serialize, de::DeserializeOwned};

use super::Malformed;

/// The first byte of a compressed document.
const COMPRESSED: u8 = 2;

/// No document of a sane repository is longer.
const LONGEST: u64 = 1 << 30;

/// Writes a document, compressed if the repository does that.
pub fn encode<T: Serialize>(document: &T, compresses: bool) -> Result<Vec<u8>, Malformed> {
    let json = serde_json::to_vec(document).map_err(Malformed::because)?;
    if !compresses {
        return Ok(json);
    }
    let mut out = vec![COMPRESSED];
    out.extend(zstd::bulk::compress(&json, 3).map_err(Malformed::because)?);
    Ok(out)
}

/// Reads a document, compressed or not.
pub fn decode<T: DeserializeOwned>(plain: &[u8]) -> Result<T, Malformed> {
    match plain.first() {
        Some(b'{' | b'[') => serde_json::from_slice(plain).map_err(Malformed::because),
        Some(&COMPRESSED) => {
            let mut json = Vec::new();
            zstd::stream::read::Decoder::new(&plain[1..])
                .and_then(|decoder| decoder.take(LONGEST).read_to_end(&mut json))
                .map_err(Malformed::because)?;
            serde_json::from_slice(&json).map_err(Malformed::because)
        }
        Some(other) => Err(Malformed(format!("it has the unknown encoding {other}"))),
        None => Err(Malformed("it is empty".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;
    use crate::format::{Config, IndexFile, LockFile, Snapshot, Tree};

    #[test]
    fn documents_survive_with_and_without_compression() {
        let config = Config::new();
        for compresses in [false, true] {
            let text = encode(&config, compresses).unwrap();
            assert_eq!(text[0] == COMPRESSED, compresses);
            assert_eq!(decode::<Config>(&text).unwrap(), config);
        }
        for wrong in [&b""[..], b"\x03{}", b"\x02nonsense", b"{", b"[1]"] {
            assert!(decode::<Config>(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_fall_over(text in "[\\[{\x02][ -~]{0,200}") {
            let _ = decode::<Config>(text.as_bytes());
            let _ = decode::<IndexFile>(text.as_bytes());
            let _ = decode::<LockFile>(text.as_bytes());
            let _ = decode::<Snapshot>(text.as_bytes());
            let _ = decode::<Tree>(text.as_bytes());
        }
    }
}
