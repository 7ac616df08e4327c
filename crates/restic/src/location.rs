//! `bucket/prefix#snapshot`: how a place in an object store is written.

use std::{collections::BTreeMap, str::FromStr};

use crate::{Error, Repository, Result, Snapshot};

/// A repository in a bucket, and perhaps a snapshot in it.
///
/// `bucket/prefix…`, with or without `s3://` in front, then optionally
/// `?region=…`, then optionally `#snapshot` (an id, its beginning, or
/// `latest`), `@name` (the newest backup of that name) or `#volume@name` (the
/// newest of that name of a volume; `latest` is the newest of any name).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The bucket.
    pub bucket: String,
    /// Prefix of all names in it; no slash at either end.
    pub prefix: String,
    /// The region, if it is given.
    pub region: Option<String>,
    /// Which snapshot, if one is meant.
    pub snapshot: Option<Selector>,
    /// Of which volume, if that is said.
    pub volume: Option<String>,
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
        let (path, snapshot, volume) = split_selector(path)?;
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
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        Ok(Self { bucket, prefix, region, snapshot, volume })
    }
}

/// A path, which snapshot is meant in it, and of which volume.
type Selected<'a> = (&'a str, Option<Selector>, Option<String>);

/// Splits off what stands behind the first `#`, or behind an `@` in the last part before
/// it. A name may have either in it.
fn split_selector(path: &str) -> Result<Selected<'_>> {
    let hash = path.find('#');
    let before = &path[..hash.unwrap_or(path.len())];
    let last = before.rfind('/').map_or(0, |slash| slash + 1);
    if let Some(at) = before[last..].find('@').map(|at| last + at) {
        let name = named(&path[at + 1..])?;
        return Ok((&path[..at], Some(Selector::Name(name)), None));
    }
    let Some(hash) = hash else { return Ok((path, None, None)) };
    let (path, behind) = (&path[..hash], &path[hash + 1..]);
    if let Some((volume, name)) = behind.split_once('@') {
        if volume.is_empty() {
            return invalid("there is no volume between the # and the @");
        }
        let selector = match name {
            "latest" => Selector::Id(name.to_owned()),
            name => Selector::Name(named(name)?),
        };
        return Ok((path, Some(selector), Some(volume.to_owned())));
    }
    if behind != "latest" && (behind.len() < 4 || !behind.bytes().all(|b| b.is_ascii_hexdigit())) {
        return invalid(format!("'{behind}' behind the # is no id of a snapshot"));
    }
    Ok((path, Some(Selector::Id(behind.to_ascii_lowercase())), None))
}

fn named(name: &str) -> Result<String> {
    if name.is_empty() { invalid("there is no name behind the @") } else { Ok(name.to_owned()) }
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
    /// The snapshot that is meant, of a volume if one is named. Where none is,
    /// those that fit have to be of one volume.
    pub async fn select(&self, selector: &Selector, volume: Option<&str>) -> Result<Snapshot> {
        let mut snapshots = self.snapshots().await?;
        snapshots.retain(|snapshot| volume.is_none_or(|it| snapshot.volume() == Some(it)));
        let (Selector::Id(wanted) | Selector::Name(wanted)) = selector;
        let missing = || match volume {
            Some(volume) => Error::NoSnapshot(format!("{volume}@{wanted}")),
            None => Error::NoSnapshot(wanted.clone()),
        };
        match selector {
            Selector::Id(id) if id == "latest" => newest(snapshots, missing),
            Selector::Name(name) => {
                snapshots.retain(|snapshot| snapshot.name() == Some(name.as_str()));
                newest(snapshots, missing)
            }
            Selector::Id(_) => {
                snapshots.retain(|snapshot| snapshot.id.to_string().starts_with(wanted));
                match snapshots.len() {
                    0 | 1 => snapshots.pop().ok_or_else(missing),
                    _ => Err(Error::AmbiguousSnapshot(wanted.clone())),
                }
            }
        }
    }
}

/// The newest of those, if all are of one volume.
fn newest(mut snapshots: Vec<Snapshot>, missing: impl FnOnce() -> Error) -> Result<Snapshot> {
    let mut volumes: BTreeMap<&str, &Snapshot> = BTreeMap::new();
    for snapshot in &snapshots {
        volumes.insert(snapshot.volume().unwrap_or_default(), snapshot);
    }
    if volumes.len() > 1 {
        let candidate = |(volume, snapshot): (&&str, &&Snapshot)| {
            let volume = if volume.is_empty() { "others" } else { volume };
            format!("{volume} ({} of {})", snapshot.id.short(), snapshot.time)
        };
        let candidates: Vec<String> = volumes.iter().map(candidate).collect();
        return Err(Error::AmbiguousVolume(candidates.join(", ")));
    }
    snapshots.pop().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> (String, String, Option<String>, Option<Selector>) {
        let Location { bucket, prefix, region, snapshot, .. } = text.parse().unwrap();
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
            ("bucket/a@mon#day", "bucket", "a", None, name("mon#day")),
            ("bucket/a#data@monday", "bucket", "a", None, name("monday")),
            ("bucket/a#data@latest", "bucket", "a", None, id("latest")),
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
    fn a_volume_stands_before_the_name() {
        let volume = |text: &str| text.parse::<Location>().unwrap().volume;
        assert_eq!(volume("bucket/a#data@monday"), Some("data".to_owned()));
        assert_eq!(volume("bucket/a@monday"), None);
        assert_eq!(volume("bucket/a#latest"), None);
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
            "bucket/a#data@",
            "bucket/a#@monday",
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
