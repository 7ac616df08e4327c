//! Programs from the projects that release them: fetched from their own addresses, which
//! are data of the catalogue, checked against the SHA-256 that stands beside them, taken
//! out of archives and kept in the controller's folder.

use std::{
    collections::BTreeMap,
    fs as blocking,
    io::{self, Read},
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use selvage_api::selvage::kubernetes::MissingArtifact;
use selvage_fetch::{Failure, Fetcher, Policy, Request, Response, Url, read};
use tokio::fs;

use super::{
    artifacts::digest_of,
    mirror::{Digests, MAX_PROGRAM, MAX_SUMS, TIMEOUT, tempfile_name, write},
};
use crate::{catalogue::ReleaseAddress, driver::Error};

/// Programs at their projects' addresses.
pub(crate) struct Official {
    /// By the folder that a project's programs are in.
    addresses: BTreeMap<String, ReleaseAddress>,
    fetcher: Fetcher,
    /// Folder of those that were fetched.
    cache: PathBuf,
}

/// Addresses of one program.
struct Location {
    address: Url,
    sums: Url,
    /// Path in the archive, where the address is that of one.
    member: Option<String>,
}

impl Location {
    /// Name of the file at the address, as lists of digests have it.
    fn file(&self) -> &str {
        self.address.path_segments().and_then(|mut all| all.next_back()).unwrap_or_default()
    }
}

/// Architecture of this host as names of releases have it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn host_of(address: &Url) -> Option<String> {
    let port = address.port_or_known_default()?;
    Some(format!("{}:{port}", address.host_str()?))
}

impl Official {
    /// `own` says that the addresses are the operator's: their hosts may be in the own
    /// network. `ca` are certificates, PEM, that are believed besides those of this host.
    pub(crate) fn new(
        addresses: BTreeMap<String, ReleaseAddress>,
        own: bool,
        ca: &[u8],
        cache: PathBuf,
    ) -> Result<Self, String> {
        let mut private_hosts = Vec::new();
        for (folder, release) in &addresses {
            for text in [&release.address, &release.sha256] {
                let address = fill(text, "0.0.0", "program");
                let wrong =
                    |reason: &str| format!("kaas.catalogue: official.{folder}: {text:?} {reason}");
                let address = Url::parse(&address).map_err(|error| wrong(&error.to_string()))?;
                private_hosts.push(host_of(&address).ok_or_else(|| wrong("names no host"))?);
            }
        }
        if !own {
            private_hosts.clear();
        }
        let policy = Policy { private_hosts, ..Policy::default() };
        let fetcher = Fetcher::new(policy).with_ca(ca);
        let fetcher = fetcher.map_err(|error| format!("kaas.artifacts_ca: {error}"))?;
        Ok(Self { addresses, fetcher, cache })
    }

    /// Path of a program that is here and whole, and its SHA-256; `None` if its project is
    /// not known.
    pub(crate) async fn get(
        &self,
        artifact: &MissingArtifact,
        pinned: &Digests,
    ) -> Result<Option<(PathBuf, String)>, Error> {
        let MissingArtifact { name, folder, version } = artifact;
        let Some(release) = self.addresses.get(folder) else { return Ok(None) };
        let relative = selvage_components::artifact_folder(Path::new(""), folder, version);
        let relative = relative.join(name).display().to_string();
        let file = self.cache.join(&relative);
        let expected = pinned.get(&relative);
        if let Some(digest) = kept(&file).await
            && expected.is_none_or(|expected| *expected == digest)
        {
            return Ok(Some((file, digest)));
        }
        let location = locate(release, version, name)?;
        let fetching = self.fetch(&location, &file, expected, pinned);
        let fetched = tokio::time::timeout(TIMEOUT, fetching).await;
        let slow = |_| Error::Unavailable(format!("{}: too slow", location.address));
        let digest = fetched.map_err(slow)??;
        tracing::info!(program = relative, address = %location.address, "fetched");
        Ok(Some((file, digest)))
    }

    async fn open(&self, address: &Url) -> Result<Response, Error> {
        let failed = |failure: Failure| Error::Unavailable(format!("{address}: {failure}"));
        let response = self.fetcher.send(Request::get(address.clone())).await.map_err(failed)?;
        match response.status().as_u16() {
            200 => Ok(response),
            status => Err(failed(Failure::Status(status))),
        }
    }

    /// SHA-256 of the file at an address, as its project tells it. Without TLS anybody
    /// could have.
    async fn sum(&self, location: &Location) -> Result<String, Error> {
        let Location { address, sums, .. } = location;
        if sums.scheme() != "https" {
            return Err(Error::Refused(format!(
                "{sums} is read without TLS: name the SHA-256 of its programs in kaas.catalogue"
            )));
        }
        let bytes = read(self.open(sums).await?, MAX_SUMS).await;
        let bytes = bytes.map_err(|failure| Error::Unavailable(format!("{sums}: {failure}")))?;
        let found = find_sum(&String::from_utf8_lossy(&bytes), location.file());
        found.ok_or_else(|| Error::Unavailable(format!("{sums} has no SHA-256 of {address}")))
    }

    /// Fetches a program, or takes it out of its archive, and puts it in its place with its
    /// digest beside it.
    async fn fetch(
        &self,
        location: &Location,
        file: &Path,
        expected: Option<&String>,
        pinned: &Digests,
    ) -> Result<String, Error> {
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", file.display()));
        let sum = match (expected, &location.member, pinned.get(location.file())) {
            // The program is what is named: what it comes in need not be known.
            (Some(_), Some(_), None) => None,
            (Some(program), None, _) => Some(program.clone()),
            (_, _, Some(archive)) => Some(archive.clone()),
            (None, _, None) => Some(self.sum(location).await?),
        };
        let response = self.open(&location.address).await?;
        fs::create_dir_all(file.parent().unwrap_or(&self.cache)).await.map_err(failed)?;
        let part = Part(tempfile_name(file));
        let broken = |reason: String| Error::Unavailable(format!("{}: {reason}", location.address));
        let found = write(response, &part.0).await.map_err(broken)?;
        if sum.as_ref().is_some_and(|sum| *sum != found) {
            return Err(other_digest(&location.address, &found, &sum.unwrap_or_default()));
        }
        let Some(member) = location.member.clone() else {
            return put(part.0.clone(), file.to_owned(), found).await.map_err(failed);
        };
        let program = Part(tempfile_name(file));
        let (from, to) = (part.0.clone(), program.0.clone());
        let taken = tokio::task::spawn_blocking(move || take_out(&from, &member, &to));
        let taken = taken.await.map_err(io::Error::other).flatten();
        taken.map_err(|error| broken(error.to_string()))?;
        let found = digest_of(&program.0).await.map_err(failed)?;
        if let Some(expected) = expected.filter(|expected| **expected != found) {
            return Err(other_digest(&location.address, &found, expected));
        }
        put(program.0.clone(), file.to_owned(), found).await.map_err(failed)
    }
}

fn other_digest(address: &Url, found: &str, expected: &str) -> Error {
    Error::Unavailable(format!("{address} has SHA-256 {found}, and {expected} is expected"))
}

/// A file that is being written, removed if it does not come to be something.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = blocking::remove_file(&self.0);
    }
}

fn fill(text: &str, version: &str, name: &str) -> String {
    text.replace("{version}", version).replace("{name}", name).replace("{arch}", architecture())
}

fn locate(release: &ReleaseAddress, version: &str, name: &str) -> Result<Location, Error> {
    let address = |text: &str| {
        let text = fill(text, version, name);
        Url::parse(&text).map_err(|error| Error::Refused(format!("{text}: {error}")))
    };
    let member = (!release.member.is_empty()).then(|| fill(&release.member, version, name));
    Ok(Location { address: address(&release.address)?, sums: address(&release.sha256)?, member })
}

/// Reads the digest of a file in a list of such, or one that stands alone.
fn find_sum(text: &str, file: &str) -> Option<String> {
    let is_digest = |word: &&str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let mut lines = text.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut words| {
        let digest = words.next().filter(is_digest)?;
        let is_meant = words
            .next()
            .is_none_or(|name| name.trim_start_matches('*').rsplit('/').next() == Some(file));
        is_meant.then(|| digest.to_ascii_lowercase())
    })
}

/// File beside a program with its digest.
fn digest_file(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.sha256"))
}

/// Digest of a program that is here and as it was when it was checked.
async fn kept(file: &Path) -> Option<String> {
    let noted = fs::read_to_string(digest_file(file)).await.ok()?;
    let found = digest_of(file).await.ok()?;
    (noted.trim() == found).then_some(found)
}

async fn put(part: PathBuf, file: PathBuf, digest: String) -> io::Result<String> {
    let put = move || {
        selvage_files::rename(&part, &file)?;
        blocking::write(digest_file(&file), &digest)?;
        Ok(digest)
    };
    tokio::task::spawn_blocking(put).await.map_err(io::Error::other)?
}

/// Writes one file of an archive.
fn take_out(archive: &Path, member: &str, to: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(GzDecoder::new(blocking::File::open(archive)?));
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        if path.strip_prefix("./").unwrap_or(&path) != Path::new(member) {
            continue;
        }
        if !entry.header().entry_type().is_file() {
            return Err(io::Error::other(format!("{member} is no file")));
        }
        let mut file = blocking::File::create(to)?;
        let written = io::copy(&mut entry.take(MAX_PROGRAM + 1), &mut file)?;
        if written > MAX_PROGRAM {
            return Err(io::Error::other(format!("{member} is larger than {MAX_PROGRAM} bytes")));
        }
        return file.sync_all();
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{member} is not in it")))
}

#[cfg(test)]
mod tests;
