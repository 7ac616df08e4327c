//! `bucket/prefix#snapshot`: how a place in an object store is written.

use std::str::FromStr;

use crate::{Error, Repository, Result, Snapshot};

/// A repository in a bucket, and perhaps a snapshot in it.
///
/// `bucket/prefix…`, with or without `s3://` in front, then optionally
/// `?region=…`, then optionally `#snapshot` (an id, its beginning, or
/// `latest`) or `@name` (the newest backup of that name).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The bucket.
    pub bucket: String,
    /// What all names in it begin with; no slash at either end.
    pub prefix: String,
    /// The region, if it is given.
    pub region: Option<String>,
    /// Which snapshot, if one is meant.
    pub snapshot: Option<Selector>,
}

/// Which snapshot is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// By its id, the beginning of it, or `latest`.
    Id(String),
    /// The newest of this name.
    Name(String),
}

fn invalid<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::Invalid { field: "path", reason: reason.into() })
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let path = text.strip_prefix("s3://").unwrap_or(text);
        let (path, snapshot) = split_selector(path)?;
        let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
        let region = query.map(region).transpose()?;
        let path = path.trim_matches('/');
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        check_bucket(bucket)?;
        let prefix = prefix.trim_matches('/');
        if prefix.split('/').any(|part| part == "." || part == "..") {
            return invalid("a part of it is '.' or '..'");
        }
        if prefix.contains("//") || path.chars().any(char::is_control) {
            return invalid("it has an empty part or a control character");
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned(), region, snapshot })
    }
}

/// What stands behind the first `#`, or behind an `@` in the last part.
fn split_selector(path: &str) -> Result<(&str, Option<Selector>)> {
    if let Some((path, id)) = path.split_once('#') {
        if id != "latest" && (id.len() < 4 || !id.bytes().all(|b| b.is_ascii_hexdigit())) {
            return invalid(format!("'{id}' behind the # is no id of a snapshot"));
        }
        return Ok((path, Some(Selector::Id(id.to_ascii_lowercase()))));
    }
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    match path[last..].find('@') {
        Some(at) if path[last + at + 1..].is_empty() => invalid("there is no name behind the @"),
        Some(at) => {
            let name = path[last + at + 1..].to_owned();
            Ok((&path[..last + at], Some(Selector::Name(name))))
        }
        None => Ok((path, None)),
    }
}

fn region(query: &str) -> Result<String> {
    match query.split_once('=') {
        Some(("region", region))
            if !region.is_empty()
                && region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') =>
        {
            Ok(region.to_owned())
        }
        _ => invalid(format!("'?{query}' is not ?region=NAME")),
    }
}

fn check_bucket(bucket: &str) -> Result<()> {
    if bucket.is_empty() {
        return invalid("it has no bucket: bucket/prefix is needed");
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if bucket.len() > 255 || !bucket.bytes().all(fine) || bucket.starts_with('.') {
        return invalid(format!("'{bucket}' cannot be a bucket"));
    }
    Ok(())
}

impl Repository {
    /// The snapshot that is meant.
    pub async fn select(&self, selector: &Selector) -> Result<Snapshot> {
        let snapshots = self.snapshots().await?;
        let (Selector::Id(wanted) | Selector::Name(wanted)) = selector;
        let missing = || Error::NoSnapshot(wanted.clone());
        if matches!(selector, Selector::Id(id) if id == "latest") {
            return snapshots.into_iter().next_back().ok_or_else(missing);
        }
        if matches!(selector, Selector::Name(_)) {
            let mut named = snapshots.into_iter().rev();
            return named.find(|s| s.name() == Some(wanted.as_str())).ok_or_else(missing);
        }
        let mut found = snapshots.into_iter().filter(|s| s.id.to_string().starts_with(wanted));
        let first = found.next().ok_or_else(missing)?;
        if found.next().is_some() {
            return Err(Error::AmbiguousSnapshot(wanted.clone()));
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> (String, String, Option<String>, Option<Selector>) {
        let Location { bucket, prefix, region, snapshot } = text.parse().unwrap();
        (bucket, prefix, region, snapshot)
    }

    #[test]
    fn the_grammar() {
        let id = |id: &str| Some(Selector::Id(id.to_owned()));
        let name = |name: &str| Some(Selector::Name(name.to_owned()));
        for (text, bucket, prefix, region, snapshot) in [
            ("bucket", "bucket", "", None, None),
            ("/bucket/", "bucket", "", None, None),
            ("s3://bucket/a/b", "bucket", "a/b", None, None),
            ("bucket/a#latest", "bucket", "a", None, id("latest")),
            ("bucket/a#DEADbeef", "bucket", "a", None, id("deadbeef")),
            ("bucket/a@monday", "bucket", "a", None, name("monday")),
            ("bucket/x@y/a", "bucket", "x@y/a", None, None),
            (
                "bucket/a?region=eu-west-1#0123abcd",
                "bucket",
                "a",
                Some("eu-west-1"),
                id("0123abcd"),
            ),
        ] {
            let expected =
                (bucket.to_owned(), prefix.to_owned(), region.map(str::to_owned), snapshot);
            assert_eq!(parts(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused_by_name() {
        for text in [
            "",
            "/",
            "s3://",
            "#latest",
            "bucket/a#",
            "bucket/a#xyz",
            "bucket/a@",
            "a b/c",
            "bucket/../x",
            "bucket//x//y",
            "bucket/a?zone=1",
            "bucket/a?region=",
            "bucket/a\nb",
        ] {
            let error = text.parse::<Location>().unwrap_err();
            assert!(matches!(error, Error::Invalid { field: "path", .. }), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_fall_over(text in ".{0,60}") {
            if let Ok(location) = text.parse::<Location>() {
                prop_assert!(!location.bucket.is_empty());
                prop_assert!(!location.prefix.starts_with('/'));
            }
        }
    }
}
