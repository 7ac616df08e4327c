//! Source of an image: an address, with what must come from there at
//! its end (`#md5:…` or `#sha256:…`).

use std::path::{Path, PathBuf};

use selvage_fetch::Url;
use sha2::{Digest, Sha256};

use super::image::Note;
use crate::{Error, Result};

/// Prefix of a path on this machine.
const FILE: &str = "file://";

/// Address of an image, and what it must be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) place: Location,
    pub(super) checksum: Option<(Sum, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Location {
    File(PathBuf),
    Web(Url),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sum {
    Md5,
    Sha256,
}

impl Source {
    pub(super) fn parse(path: &str) -> Result<Self> {
        let wrong = |reason: &str| Error::invalid("image_path", reason);
        let (place, sum) = path.split_once('#').map_or((path, None), |(at, sum)| (at, Some(sum)));
        let checksum = sum.map(|sum| {
            let (kind, length, digits) = match sum.split_once(':') {
                Some(("md5", digits)) => (Sum::Md5, 32, digits),
                Some(("sha256", digits)) => (Sum::Sha256, 64, digits),
                _ => return Err(wrong("ends with a checksum that is not md5:… or sha256:…")),
            };
            if digits.len() == length && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                Ok((kind, digits.to_ascii_lowercase()))
            } else {
                Err(wrong("has a checksum of the wrong length, or with other letters than digits"))
            }
        });
        let place = match place.strip_prefix(FILE) {
            Some(file) if Path::new(file).is_absolute() => Location::File(file.into()),
            Some(_) => return Err(wrong("file:// needs an absolute path")),
            None => match Url::parse(place) {
                Ok(url) if matches!(url.scheme(), "http" | "https") => Location::Web(url),
                _ => return Err(wrong("is not an http, https or file address")),
            },
        };
        Ok(Self { place, checksum: checksum.transpose()? })
    }

    /// By which it is remembered.
    pub(super) fn name(&self) -> String {
        let place = match &self.place {
            Location::File(path) => path.display().to_string(),
            Location::Web(url) => url.to_string(),
        };
        hex::encode(Sha256::digest(place))
    }

    pub(super) fn check(&self, note: &Note) -> Result<()> {
        let Some((sum, wanted)) = &self.checksum else { return Ok(()) };
        let (name, found) = match sum {
            Sum::Md5 => ("md5", &note.md5),
            Sum::Sha256 => ("sha256", &note.sha256),
        };
        if wanted == found {
            return Ok(());
        }
        Err(Error::invalid("image_path", format!("the image's {name} is {found}, not {wanted}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn addresses_are_read_with_their_checksums() {
        let md5 = "D41D8CD98F00B204E9800998ECF8427E";
        let source = Source::parse(&format!("https://images.example/vm.qcow2?a=1#md5:{md5}"));
        let source = source.unwrap();
        assert_eq!(source.checksum, Some((Sum::Md5, md5.to_ascii_lowercase())));
        let plain = Source::parse("https://images.example/vm.qcow2?a=1").unwrap();
        assert_eq!(plain.name(), source.name(), "what it must be is not where it is");
        let file = Source::parse("file:///a/b.qcow2").unwrap();
        assert_eq!(file.place, Location::File("/a/b.qcow2".into()));
        for (bad, says) in [
            ("file://a.qcow2", "file:// needs an absolute path"),
            ("ftp://a/b", "is not an http"),
            ("vm.qcow2", "is not an http"),
            ("https://a/b#crc:00", "md5:… or sha256:…"),
            ("https://a/b#md5:00", "wrong length"),
            ("https://a/b#sha256:zz", "wrong length"),
        ] {
            let error = Source::parse(bad).unwrap_err().to_string();
            assert!(error.starts_with("image_path: ") && error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn what_came_must_be_what_was_asked_for() {
        let mut note = Note::default();
        (note.sha256, note.md5) = ("ab".repeat(32), "cd".repeat(16));
        let with = |sum: &str| Source::parse(&format!("https://a/b{sum}")).unwrap().check(&note);
        with("").unwrap();
        with(&format!("#sha256:{}", "ab".repeat(32))).unwrap();
        let error = with(&format!("#md5:{}", "00".repeat(16))).unwrap_err().to_string();
        assert!(error.starts_with("image_path: the image's md5 is cdcd"), "{error}");
    }
}
