//! Which snapshots are of the same volume.

use std::collections::{BTreeMap, BTreeSet};

use crate::Snapshot;

/// A volume of a machine, whose snapshots are judged together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series<'a> {
    pub(crate) hostname: &'a str,
    /// None where that is not known.
    pub(crate) group: Option<&'a str>,
    /// Empty for what somebody else made.
    pub(crate) volume: &'a str,
}

impl Series<'_> {
    /// `GROUP/NAME`, as far as it is known.
    pub(crate) fn volume_name(&self) -> String {
        match (self.volume, self.group) {
            ("", _) => "others".to_owned(),
            (volume, Some(group)) => format!("{group}/{volume}"),
            (volume, None) => volume.to_owned(),
        }
    }
}

/// Volumes that the snapshots of a repository are of.
///
/// Snapshots of version 0.2 and before do not say which group their volume was in. They
/// count to the volume of that name of which others are known, if there is one such; if
/// there are more, they are by themselves.
pub(crate) struct AllSeries<'a>(BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>);

impl<'a> AllSeries<'a> {
    pub(crate) fn of(snapshots: &'a [Snapshot]) -> Self {
        let mut groups: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
        for snapshot in snapshots {
            groups.entry(volume_of(snapshot)).or_default().extend(snapshot.group());
        }
        Self(groups)
    }

    fn groups(&self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a str> {
        self.0.get(&volume_of(snapshot)).into_iter().flatten().copied()
    }

    /// The series of a snapshot.
    pub(crate) fn find(&self, snapshot: &'a Snapshot) -> Series<'a> {
        let (hostname, volume) = volume_of(snapshot);
        let mut known = self.groups(snapshot);
        let only = known.next().filter(|_| known.next().is_none());
        Series { hostname, group: snapshot.group().or(only), volume }
    }

    /// Returns whether nothing speaks against it that a snapshot is of a volume in a group.
    pub(crate) fn is_in(&self, snapshot: &'a Snapshot, group: &str) -> bool {
        match snapshot.group() {
            Some(own) => own == group,
            None => self.groups(snapshot).all(|known| known == group),
        }
    }
}

fn volume_of(snapshot: &Snapshot) -> (&str, &str) {
    (&snapshot.hostname, snapshot.volume().unwrap_or_default())
}
