//! Versions of Kubernetes on offer, which of them can follow which, and how
//! far apart the members of a cluster may be. All of it is data.

use std::{collections::BTreeMap, fmt, path::Path, str::FromStr};

use serde::Deserialize;

/// The catalogue that comes with the program.
const BUILT_IN: &str = include_str!("../catalogue.toml");

/// A version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// Text that is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version such as 1.36.4")]
pub struct NotAVersion(pub String);

impl FromStr for Version {
    type Err = NotAVersion;

    /// Reads `1.36.4` or `v1.36.4`.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let wrong = || NotAVersion(text.chars().take(64).collect());
        let number = |part: &str| {
            let plain = part.len() <= 6
                && part.bytes().all(|byte| byte.is_ascii_digit())
                && (part == "0" || !part.starts_with('0'));
            plain.then(|| part.parse().ok()).flatten().ok_or_else(wrong)
        };
        let parts: Vec<&str> = text.strip_prefix('v').unwrap_or(text).split('.').collect();
        let [major, minor, patch] = parts.as_slice() else { return Err(wrong()) };
        Ok(Self { major: number(major)?, minor: number(minor)?, patch: number(patch)? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A version on offer and what it is run with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    pub version: Version,
    pub etcd: String,
    pub containerd: String,
    pub cni: String,
    pub coredns: String,
    pub pause: String,
}

/// Addresses of a project's releases. `{version}`, `{name}` and `{arch}` stand for those of
/// a program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseAddress {
    /// Address of a program, or of the archive that it is in.
    pub address: String,
    /// Address of the SHA-256 of that, alone or in a list.
    pub sha256: String,
    /// Path of a program in the archive. Empty: there is none.
    #[serde(default)]
    pub member: String,
}

/// Version skew that Kubernetes allows, in minors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skew {
    /// API servers of one cluster apart from each other.
    pub control_plane: u32,
    /// Kubelets behind the newest API server.
    pub kubelet: u32,
    /// Minors that one upgrade goes forward, through each of those in between.
    pub step: u32,
}

impl Skew {
    /// Returns why these members may not run together, if they may not.
    pub fn check(&self, control_plane: &[Version], kubelets: &[Version]) -> Result<(), String> {
        let (Some(oldest), Some(newest)) = (control_plane.iter().min(), control_plane.iter().max())
        else {
            return Ok(());
        };
        if newest.major != oldest.major || newest.minor - oldest.minor > self.control_plane {
            return Err(format!("API servers {oldest} and {newest} are too far apart"));
        }
        for kubelet in kubelets {
            let ahead = (kubelet.major, kubelet.minor) > (oldest.major, oldest.minor);
            if ahead {
                return Err(format!("kubelet {kubelet} is newer than API server {oldest}"));
            }
            if newest.minor.saturating_sub(kubelet.minor) > self.kubelet {
                return Err(format!(
                    "kubelet {kubelet} is more than {} minors older than API server {newest}",
                    self.kubelet
                ));
            }
        }
        Ok(())
    }
}

/// A catalogue that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("catalogue {path}")]
    Read { path: String, source: std::io::Error },
    #[error("catalogue {path}")]
    Parse { path: String, source: toml::de::Error },
    #[error("catalogue {path}: it offers no version")]
    Empty { path: String },
    #[error("catalogue {path}: version {version} stands in it twice")]
    Twice { path: String, version: Version },
    #[error(
        "catalogue {path}: step of [skew] is {step}, and has to be 1 to {most}, the minors that \
         a kubelet may be behind: nodes wait while the control plane goes that far"
    )]
    Step { path: String, step: u32, most: u32 },
    #[error("catalogue {path}: sha256 of {program:?} has to be 64 hexadecimal digits")]
    Digest { path: String, program: String },
}

/// All versions on offer, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    releases: Vec<Release>,
    pub skew: Skew,
    /// SHA-256 of programs by their path in the folder of programs, as far as
    /// they are named.
    pub sha256: BTreeMap<String, String>,
    /// Addresses of releases by the folder that their programs are in.
    pub official: BTreeMap<String, ReleaseAddress>,
    /// True if these addresses are the site's own.
    pub has_own_addresses: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    skew: Skew,
    #[serde(default)]
    sha256: BTreeMap<String, String>,
    #[serde(default)]
    official: BTreeMap<String, ReleaseAddress>,
    kubernetes: Vec<Release>,
}

impl Catalogue {
    /// The catalogue of that file, or the one that comes with the program.
    pub fn load(path: Option<&Path>) -> Result<Self, Error> {
        match path {
            None => Self::parse("built in", BUILT_IN),
            Some(path) => {
                let name = path.display().to_string();
                let text = std::fs::read_to_string(path)
                    .map_err(|source| Error::Read { path: name.clone(), source })?;
                Self::parse(&name, &text)
            }
        }
    }

    fn parse(path: &str, text: &str) -> Result<Self, Error> {
        let path = path.to_owned();
        let File { skew, sha256, official, mut kubernetes } =
            toml::from_str(text).map_err(|source| Error::Parse { path: path.clone(), source })?;
        kubernetes.sort_by_key(|release| release.version);
        if kubernetes.is_empty() {
            return Err(Error::Empty { path });
        }
        if !(1..=skew.kubelet).contains(&skew.step) {
            return Err(Error::Step { path, step: skew.step, most: skew.kubelet });
        }
        if let Some(pair) = kubernetes.windows(2).find(|pair| pair[0].version == pair[1].version) {
            return Err(Error::Twice { path, version: pair[0].version });
        }
        let hex =
            |digest: &&String| digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
        if let Some((program, _)) = sha256.iter().find(|(_, digest)| !hex(digest)) {
            return Err(Error::Digest { path, program: program.clone() });
        }
        let sha256 = sha256.into_iter().map(|(key, digest)| (key, digest.to_ascii_lowercase()));
        let has_own_addresses = text != BUILT_IN && !official.is_empty();
        let official = match official.is_empty() {
            true => Self::parse("built in", BUILT_IN)?.official,
            false => official,
        };
        let sha256 = sha256.collect();
        Ok(Self { releases: kubernetes, skew, sha256, official, has_own_addresses })
    }

    /// All releases, oldest first.
    pub fn releases(&self) -> &[Release] {
        &self.releases
    }

    /// The release of that version.
    pub fn find(&self, version: Version) -> Option<&Release> {
        self.releases.iter().find(|release| release.version == version)
    }

    /// The newest version on offer.
    pub fn newest(&self) -> Option<Version> {
        self.releases.last().map(|release| release.version)
    }

    /// All versions as one text, for messages.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.releases.iter().map(|r| r.version.to_string()).collect();
        names.join(", ")
    }

    /// Versions that one upgrade reaches from a control plane of that version
    /// with a kubelet of that version as its oldest, on machines that can run what `lacks`
    /// says nothing about.
    pub fn reachable(
        &self,
        from: Version,
        oldest_kubelet: Version,
        lacks: impl Fn(&Release) -> Option<String>,
    ) -> Vec<Version> {
        let legal = |release: &&Release| {
            release.version != from
                && lacks(release).is_none()
                && self.hops(from, release.version, oldest_kubelet, &lacks).is_ok()
        };
        self.releases.iter().filter(legal).map(|release| release.version).collect()
    }

    /// Versions that an upgrade goes through: the newest one of each minor in between that
    /// machines can run, because no control plane skips a minor. Or why the upgrade cannot
    /// go there.
    pub fn hops(
        &self,
        from: Version,
        to: Version,
        oldest_kubelet: Version,
        lacks: impl Fn(&Release) -> Option<String>,
    ) -> Result<Vec<Version>, String> {
        self.check_step(from, to, oldest_kubelet)?;
        let between = from.minor + 1..to.minor;
        between.map(|minor| self.hop(Version { minor, ..from }, to, &lacks)).collect()
    }

    /// Version of the minor of `through` that an upgrade goes through.
    fn hop(
        &self,
        through: Version,
        to: Version,
        lacks: impl Fn(&Release) -> Option<String>,
    ) -> Result<Version, String> {
        let Version { major, minor, .. } = through;
        let mut lack = "no version of it is on offer".to_owned();
        for release in self.releases.iter().rev() {
            if (release.version.major, release.version.minor) != (major, minor) {
                continue;
            }
            match lacks(release) {
                None => return Ok(release.version),
                Some(why) => lack = why,
            }
        }
        Err(format!("the way to {to} leads through {major}.{minor}: {lack}"))
    }

    /// Returns why an upgrade cannot go there at once, if it cannot.
    fn check_step(
        &self,
        from: Version,
        to: Version,
        oldest_kubelet: Version,
    ) -> Result<(), String> {
        if to < from {
            return Err(format!("{to} is older than {from}: a cluster is never taken back"));
        }
        if to.major != from.major || to.minor - from.minor > self.skew.step {
            let what = match self.skew.step {
                1 => "skips a minor version".to_owned(),
                step => format!("is more than {step} minor versions ahead"),
            };
            return Err(format!(
                "{to} {what}: upgrade from {from} to {}.{} first",
                from.major,
                from.minor + self.skew.step
            ));
        }
        if to.minor.saturating_sub(oldest_kubelet.minor) > self.skew.kubelet {
            return Err(format!(
                "a node still runs {oldest_kubelet}, more than {} minors older than {to}",
                self.skew.kubelet
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn v(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_read_with_and_without_the_letter_and_nothing_else() {
        assert_eq!(v("v1.36.4"), v("1.36.4"));
        assert_eq!(v("1.36.4").to_string(), "1.36.4");
        for bad in ["", "1.36", "1.36.4.1", "1.36.x", "1.36.-1", "01.36.4", "1. 36.4", "vv1.36.4"] {
            assert_eq!(bad.parse::<Version>(), Err(NotAVersion(bad.into())), "{bad}");
        }
    }

    #[test]
    fn the_catalogue_offers_the_three_newest_minors() {
        let catalogue = Catalogue::load(None).unwrap();
        assert_eq!(catalogue.names(), "1.35.8, 1.36.4, 1.37.1");
        assert_eq!(catalogue.newest(), Some(v("1.37.1")));
        assert_eq!(catalogue.find(v("1.36.4")).unwrap().etcd, "3.6.8");
    }

    #[test]
    fn one_upgrade_reaches_newer_patches_and_the_next_minor() {
        let text = BUILT_IN.to_owned()
            + "[[kubernetes]]\nversion = \"1.35.9\"\netcd = \"3.6.6\"\ncontainerd = \"2.2.0\"\n\
               cni = \"1.8.0\"\ncoredns = \"1.13.1\"\npause = \"3.10.1\"\n";
        let catalogue = Catalogue::parse("test", &text).unwrap();
        let reachable = |from, kubelet| catalogue.reachable(v(from), v(kubelet), |_| None);
        assert_eq!(reachable("1.35.8", "1.35.8"), [v("1.35.9"), v("1.36.4")]);
        assert_eq!(reachable("1.36.4", "1.35.8"), [v("1.37.1")]);
        assert_eq!(reachable("1.36.4", "1.33.1"), []);
        assert_eq!(reachable("1.37.1", "1.37.1"), []);
    }

    #[test]
    fn a_longer_upgrade_goes_through_a_version_of_each_minor_in_between() {
        let text = BUILT_IN.replace("step = 1", "step = 2");
        let catalogue = Catalogue::parse("test", &text).unwrap();
        let (old, new) = (v("1.35.8"), v("1.37.1"));
        assert_eq!(catalogue.reachable(old, old, |_| None), [v("1.36.4"), new]);
        assert_eq!(catalogue.hops(old, new, old, |_| None), Ok(vec![v("1.36.4")]));
        assert_eq!(catalogue.hops(old, v("1.36.4"), old, |_| None), Ok(Vec::new()));
        let far = catalogue.hops(v("1.34.1"), new, v("1.34.1"), |_| None).unwrap_err();
        assert_eq!(
            far,
            "1.37.1 is more than 2 minor versions ahead: upgrade from 1.34.1 to 1.36 first"
        );
        let behind = catalogue.hops(v("1.36.4"), new, v("1.33.1"), |_| None).unwrap_err();
        assert!(behind.starts_with("a node still runs 1.33.1"), "{behind}");
        // Without the programs of the one in between there is no way.
        let lacks = |release: &Release| {
            (release.version == v("1.36.4")).then(|| "kubelet 1.36.4 is missing".to_owned())
        };
        assert_eq!(catalogue.reachable(old, old, lacks), [new; 0]);
        let missing = catalogue.hops(old, new, old, lacks).unwrap_err();
        assert_eq!(missing, "the way to 1.37.1 leads through 1.36: kubelet 1.36.4 is missing");
        let cut = text.replace("version = \"1.36.4\"", "version = \"1.33.4\"");
        let cut = Catalogue::parse("test", &cut).unwrap();
        let none = cut.hops(old, new, old, |_| None).unwrap_err();
        assert_eq!(none, "the way to 1.37.1 leads through 1.36: no version of it is on offer");
    }

    #[test]
    fn an_upgrade_goes_no_farther_than_kubelets_may_be_behind() {
        for step in [0, 4] {
            let text = BUILT_IN.replace("step = 1", &format!("step = {step}"));
            let refused = Catalogue::parse("file", &text).unwrap_err().to_string();
            let start = format!("catalogue file: step of [skew] is {step}, and has to be 1 to 3");
            assert!(refused.starts_with(&start), "{refused}");
        }
    }

    #[test]
    fn skew_is_judged_by_the_table() {
        let skew = Catalogue::load(None).unwrap().skew;
        skew.check(&[v("1.35.8"), v("1.36.4")], &[v("1.35.8"), v("1.33.0")]).unwrap();
        let newer = skew.check(&[v("1.35.8"), v("1.36.4")], &[v("1.36.4")]).unwrap_err();
        assert_eq!(newer, "kubelet 1.36.4 is newer than API server 1.35.8");
        assert!(skew.check(&[v("1.37.1")], &[v("1.33.0")]).is_err());
        assert!(skew.check(&[v("1.37.1"), v("1.35.8")], &[]).is_err());
    }

    #[test]
    fn a_broken_catalogue_says_what_is_wrong() {
        let twice = BUILT_IN.to_owned() + &BUILT_IN[BUILT_IN.find("[[kubernetes]]").unwrap()..];
        let error = Catalogue::parse("file", &twice).unwrap_err();
        assert_eq!(error.to_string(), "catalogue file: version 1.35.8 stands in it twice");
        assert!(matches!(Catalogue::parse("file", "x = 1"), Err(Error::Parse { .. })));
    }
}
