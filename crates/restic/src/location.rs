//! `bucket/prefix#snapshot`: how a place in an object store is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use jiff::Timestamp;

use crate::{
    Error, Repository, Result, Snapshot,
    format::is_ahead,
    series::{AllSeries, Series},
};

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

/// Owner of the snapshot that is meant, as far as that is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotFilter<'a> {
    /// Volume that it is of.
    pub volume: Option<&'a str>,
    /// Group that the volume was in.
    pub group: Option<&'a str>,
    /// Machine that it was made on.
    pub hostname: Option<&'a str>,
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
    /// The snapshot that is meant. Where several fit a name, or `latest`, they have to be of
    /// one volume of one machine; those of this machine go before others if no machine is
    /// named. The newest is one whose time has come, if there is one: others were made while
    /// a clock was wrong, and may be older.
    pub async fn select(
        &self,
        selector: &Selector,
        wanted: SnapshotFilter<'_>,
    ) -> Result<Snapshot> {
        let snapshots = self.snapshots().await?;
        let asker = Asker { hostname: &self.options().hostname, now: self.now() };
        pick(&snapshots, selector, wanted, asker).cloned()
    }
}

/// Machine on which a snapshot is asked for, and the time there.
#[derive(Clone, Copy)]
struct Asker<'a> {
    hostname: &'a str,
    now: Timestamp,
}

/// The snapshot that is meant by somebody on a machine.
fn pick<'a>(
    snapshots: &'a [Snapshot],
    selector: &Selector,
    wanted: SnapshotFilter<'_>,
    asker: Asker<'_>,
) -> Result<&'a Snapshot> {
    let all = AllSeries::of(snapshots);
    let (Selector::Id(word) | Selector::Name(word)) = selector;
    let by_age = matches!(selector, Selector::Id(id) if id == "latest");
    let fits = |snapshot: &&Snapshot| {
        wanted.volume.is_none_or(|volume| snapshot.volume() == Some(volume))
            && wanted.hostname.is_none_or(|hostname| snapshot.hostname == hostname)
            && match selector {
                Selector::Name(name) => snapshot.name() == Some(name),
                Selector::Id(id) => by_age || snapshot.id.to_string().starts_with(id),
            }
    };
    let mut fitting: Vec<&Snapshot> = snapshots
        .iter()
        .filter(fits)
        .filter(|snapshot| wanted.group.is_none_or(|group| all.is_in(snapshot, group)))
        .collect();
    if by_age || matches!(selector, Selector::Name(_)) {
        if wanted.hostname.is_none() && fitting.iter().any(|it| it.hostname == asker.hostname) {
            fitting.retain(|snapshot| snapshot.hostname == asker.hostname);
        }
        check_single(&all, &fitting)?;
        let has_come = |snapshot: &&Snapshot| !is_ahead(snapshot.time, asker.now);
        if fitting.iter().any(has_come) {
            fitting.retain(has_come);
        }
    } else if fitting.len() > 1 {
        return Err(Error::AmbiguousSnapshot(word.clone()));
    }
    fitting.pop().ok_or_else(|| match wanted.volume {
        Some(volume) => Error::NoSnapshot(format!("{volume}@{word}")),
        None => Error::NoSnapshot(word.clone()),
    })
}

/// Refuses snapshots, oldest first, of several volumes or machines.
fn check_single(all: &AllSeries<'_>, fitting: &[&Snapshot]) -> Result<()> {
    let mut newest: BTreeMap<Series<'_>, &Snapshot> = BTreeMap::new();
    for &snapshot in fitting {
        newest.insert(all.find(snapshot), snapshot);
    }
    let hosts: BTreeSet<&str> = newest.keys().map(|series| series.hostname).collect();
    let (one_host, one_volume) = (hosts.len() <= 1, newest.len() <= 1);
    if one_volume {
        return Ok(());
    }
    let candidates = newest.iter().map(|(series, snapshot)| {
        let volume = series.volume_name();
        let on = if one_host { String::new() } else { format!(" on {}", series.hostname) };
        format!("{volume}{on} ({} of {})", snapshot.id.short(), snapshot.time)
    });
    let candidates = candidates.collect::<Vec<_>>().join(", ");
    Err(if one_host {
        Error::AmbiguousVolume(candidates)
    } else {
        Error::AmbiguousHost(candidates)
    })
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

    fn made(hostname: &str, group: &str, name: &str, hour: u32) -> Snapshot {
        let mut tags = vec!["volume=data".to_owned(), format!("name={name}")];
        tags.extend(Some(format!("group={group}")).filter(|_| !group.is_empty()));
        let id = crate::Id::of(format!("{hostname} {group} {name} {hour}").as_bytes());
        Snapshot {
            id,
            time: format!("2026-01-01T{hour:02}:00:00Z").parse().unwrap(),
            parent: None,
            tree: id,
            paths: Vec::new(),
            hostname: hostname.to_owned(),
            username: String::new(),
            tags,
            program_version: String::new(),
        }
    }

    fn on(hostname: &str) -> Asker<'_> {
        Asker { hostname, now: "2026-01-01T12:00:00Z".parse().unwrap() }
    }

    /// It was made while the clock was wrong, before those that are newer in truth.
    #[test]
    fn a_backup_from_the_future_is_not_the_newest() {
        let latest = Selector::Id("latest".into());
        let mut snapshots = vec![made("a", "", "x", 1), made("a", "", "x", 2)];
        snapshots[1].time = "2029-01-01T00:00:00Z".parse().unwrap();
        for selector in [latest.clone(), Selector::Name("x".into())] {
            let picked = pick(&snapshots, &selector, SnapshotFilter::default(), on("a")).unwrap();
            assert_eq!(picked.id, snapshots[0].id, "{selector:?}");
        }
        let by_id = Selector::Id(snapshots[1].id.short());
        let picked = pick(&snapshots, &by_id, SnapshotFilter::default(), on("a")).unwrap();
        assert_eq!(picked.id, snapshots[1].id);
        // Nothing else is there: perhaps it is our clock that is wrong.
        let picked = pick(&snapshots[1..], &latest, SnapshotFilter::default(), on("a")).unwrap();
        assert_eq!(picked.id, snapshots[1].id);
    }

    /// A backup of another machine is never taken for one of this one, nor one of several
    /// others for the one that is meant.
    #[test]
    fn machines_and_groups_are_distinguished() {
        let (latest, monday) = (Selector::Id("latest".into()), Selector::Name("monday".into()));
        let anybodys = SnapshotFilter { volume: Some("data"), ..SnapshotFilter::default() };
        let snapshots =
            [made("a", "", "monday", 1), made("b", "vg1", "monday", 2), made("b", "vg1", "x", 3)];
        let id = |selector: &Selector, wanted, own: &str| {
            pick(&snapshots, selector, wanted, on(own)).map(|snapshot| snapshot.id)
        };
        for selector in [&latest, &monday] {
            assert_eq!(id(selector, anybodys, "a").unwrap(), snapshots[0].id, "own before newer");
            let refused = id(selector, anybodys, "c").unwrap_err();
            assert!(matches!(refused, Error::AmbiguousHost(_)), "{refused}");
            let told = refused.to_string();
            assert!(told.contains("data on a (") && told.contains("vg1/data on b ("), "{told}");
            let on_a = SnapshotFilter { hostname: Some("a"), ..anybodys };
            assert_eq!(id(selector, on_a, "b").unwrap(), snapshots[0].id);
        }
        assert_eq!(id(&latest, anybodys, "b").unwrap(), snapshots[2].id);
        let none = SnapshotFilter { hostname: Some("c"), ..anybodys };
        assert!(matches!(id(&latest, none, "a"), Err(Error::NoSnapshot(_))));
        // By its id, whoever asks.
        let third = Selector::Id(snapshots[2].id.short());
        assert_eq!(id(&third, anybodys, "a").unwrap(), snapshots[2].id);
        // The only machine there is, from another: a new one takes over.
        assert_eq!(
            pick(&snapshots[1..], &latest, anybodys, on("a")).unwrap().id,
            snapshots[2].id,
            "nothing else can be meant"
        );

        let groups = [made("a", "vg1", "x", 1), made("a", "vg2", "x", 2)];
        let refused = pick(&groups, &latest, anybodys, on("a")).unwrap_err();
        assert!(matches!(refused, Error::AmbiguousVolume(_)), "{refused}");
        assert!(refused.to_string().contains("vg1/data ("), "{refused}");
        let first = SnapshotFilter { group: Some("vg1"), ..anybodys };
        assert_eq!(pick(&groups, &latest, first, on("a")).unwrap().id, groups[0].id);
        // One from before groups were told is found by any, if it is the only one.
        let old = [made("a", "", "x", 1)];
        assert_eq!(pick(&old, &latest, first, on("a")).unwrap().id, old[0].id);
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
