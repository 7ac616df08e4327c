//! Packs: sealed blobs one after the other, then a sealed header that says
//! what they are, then its length.

use serde::{Deserialize, Serialize};

use super::Malformed;
use crate::{Id, crypto::OVERHEAD};

/// The kinds of blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlobKind {
    /// A part of a file.
    Data,
    /// A folder.
    Tree,
}

/// One blob and where it is in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedBlob {
    /// The SHA-256 of its plain text.
    pub id: Id,
    /// Of what kind it is.
    pub kind: BlobKind,
    /// Offset of its beginning.
    pub offset: u32,
    /// Length, sealed.
    pub length: u32,
    /// Length of its plain text, if it is compressed.
    pub uncompressed_length: Option<u32>,
}

impl PackedBlob {
    /// Returns the length of its plain text.
    pub fn plain_length(&self) -> u32 {
        self.uncompressed_length.unwrap_or(self.length.saturating_sub(OVERHEAD as u32))
    }
}

/// Writes the header of a pack, not yet sealed.
pub fn header_plain(blobs: &[PackedBlob]) -> Vec<u8> {
    let mut out = Vec::with_capacity(blobs.len() * 41);
    for blob in blobs {
        let kind = matches!(blob.kind, BlobKind::Tree) as u8;
        out.push(kind | if blob.uncompressed_length.is_some() { 2 } else { 0 });
        out.extend(blob.length.to_le_bytes());
        if let Some(length) = blob.uncompressed_length {
            out.extend(length.to_le_bytes());
        }
        out.extend(blob.id.as_bytes());
    }
    out
}

/// Reads the header of a pack, already opened.
pub fn parse_header(mut plain: &[u8]) -> Result<Vec<PackedBlob>, Malformed> {
    let mut blobs = Vec::new();
    let mut offset = 0u32;
    while !plain.is_empty() {
        let kind = take::<1>(&mut plain)?[0];
        if kind > 3 {
            return Err(Malformed(format!("its header has a blob of the unknown kind {kind}")));
        }
        let length = u32::from_le_bytes(take(&mut plain)?);
        let uncompressed_length =
            if kind >= 2 { Some(u32::from_le_bytes(take(&mut plain)?)) } else { None };
        let id = Id::from_bytes(take(&mut plain)?);
        if (length as usize) < OVERHEAD {
            return Err(Malformed("its header has a blob that is too short".to_owned()));
        }
        let kind = if kind & 1 == 0 { BlobKind::Data } else { BlobKind::Tree };
        blobs.push(PackedBlob { id, kind, offset, length, uncompressed_length });
        offset = offset
            .checked_add(length)
            .ok_or_else(|| Malformed("its header has blobs of more than 4 GiB".to_owned()))?;
    }
    Ok(blobs)
}

fn take<const LENGTH: usize>(from: &mut &[u8]) -> Result<[u8; LENGTH], Malformed> {
    let (first, rest) = from
        .split_first_chunk::<LENGTH>()
        .ok_or_else(|| Malformed("its header ends in the middle of a blob".to_owned()))?;
    *from = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    fn blob() -> impl Strategy<Value = PackedBlob> {
        let kind = prop_oneof![Just(BlobKind::Data), Just(BlobKind::Tree)];
        let length = 32..1_000_000u32;
        (any::<[u8; 32]>(), kind, length, any::<Option<u32>>()).prop_map(
            |(id, kind, length, uncompressed_length)| PackedBlob {
                id: Id::from_bytes(id),
                kind,
                offset: 0,
                length,
                uncompressed_length,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(mut blobs in proptest::collection::vec(blob(), 0..50)) {
            let mut offset = 0;
            for blob in &mut blobs {
                blob.offset = offset;
                offset += blob.length;
            }
            prop_assert_eq!(parse_header(&header_plain(&blobs)).unwrap(), blobs);
        }

        #[test]
        fn nothing_makes_it_fall_over(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_header(&bytes);
        }
    }

    #[test]
    fn half_a_header_and_unknown_kinds_are_refused() {
        let id = Id::of(b"");
        let blob = PackedBlob {
            id,
            kind: BlobKind::Tree,
            offset: 0,
            length: 40,
            uncompressed_length: Some(9),
        };
        let mut header = header_plain(&[blob]);
        assert!(parse_header(&header[..40]).is_err());
        header[0] = 4;
        assert!(parse_header(&header).is_err());
        header[0] = 3;
        header[1] = 31;
        assert!(parse_header(&header).is_err());
    }
}
