//! Mirror of programs: fetched over HTTP, checked against their SHA-256, kept in
//! the controller's folder.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use selvage_fetch::{Failure, Fetcher, Policy, Request, Response, Url, read};
use sha2::{Digest, Sha256};
use tokio::{fs, io::AsyncWriteExt};

use crate::driver::Error;

/// File of a mirror that lists SHA-256 and path of each program, as `sha256sum`
/// prints them.
const SUMS: &str = "SHA256SUMS";
/// Larger lists and programs are refused.
pub(super) const MAX_SUMS: usize = 1 << 20;
pub(super) const MAX_PROGRAM: u64 = 1 << 30;
/// Timeout of fetching a program; a transfer that stands still ends earlier.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1800);

/// SHA-256 of programs by their path in a folder, such as
/// `etcd/3.6.8/etcd`.
pub(crate) type Digests = BTreeMap<String, String>;

/// Programs at an address.
pub(crate) struct Mirror {
    base: Url,
    fetcher: Fetcher,
    /// Folder of those that were fetched.
    cache: PathBuf,
}

impl Mirror {
    /// `ca` are certificates, PEM, that are believed besides those of this host.
    pub(crate) fn new(address: &str, ca: &[u8], cache: PathBuf) -> Result<Self, String> {
        let wrong = |reason: &str| format!("kaas.artifacts: {address:?} {reason}");
        let mut base = address.to_owned();
        if !base.ends_with('/') {
            base.push('/');
        }
        let base = Url::parse(&base).map_err(|error| wrong(&error.to_string()))?;
        let Some(host) = base.host_str() else { return Err(wrong("names no host")) };
        let port = base.port_or_known_default().unwrap_or_default();
        // Whoever configures a mirror may have it in the own network; where it
        // redirects to is judged as any other address.
        let policy = Policy { private_hosts: vec![format!("{host}:{port}")], ..Policy::default() };
        let fetcher =
            Fetcher::new(policy).with_ca(ca).map_err(|error| wrong(&error.to_string()))?;
        Ok(Self { base, fetcher, cache })
    }

    /// Path of a program that is here and whole, and its SHA-256; `None` if the
    /// mirror does not list it.
    pub(crate) async fn get(
        &self,
        path: &str,
        pinned: &Digests,
    ) -> Result<Option<(PathBuf, String)>, Error> {
        let expected = match pinned.get(path) {
            Some(pinned) => pinned.clone(),
            None => match self.sums().await?.remove(path) {
                Some(listed) => listed,
                None => return Ok(None),
            },
        };
        let file = self.cache.join(path);
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", file.display()));
        if fs::try_exists(&file).await.map_err(failed)?
            && super::artifacts::digest_of(&file).await.map_err(failed)? == expected
        {
            return Ok(Some((file, expected)));
        }
        let fetched = tokio::time::timeout(TIMEOUT, self.fetch(path, &file, &expected)).await;
        fetched.map_err(|_| Error::Unavailable(format!("{path}: the mirror is too slow")))??;
        tracing::info!(program = path, "fetched from the mirror");
        Ok(Some((file, expected)))
    }

    async fn open(&self, path: &str) -> Result<Response, Error> {
        let failed =
            |failure: Failure| Error::Unavailable(format!("{}{path}: {failure}", self.base));
        let url = self.base.join(path).map_err(|error| Error::Refused(error.to_string()))?;
        let response = self.fetcher.send(Request::get(url)).await.map_err(failed)?;
        match response.status().as_u16() {
            200 => Ok(response),
            status => Err(failed(Failure::Status(status))),
        }
    }

    /// The mirror's own list of digests. Without TLS anybody could have written
    /// it.
    async fn sums(&self) -> Result<Digests, Error> {
        if self.base.scheme() != "https" {
            return Err(Error::Refused(format!(
                "{} is read without TLS: name the SHA-256 of its programs in kaas.catalogue",
                self.base
            )));
        }
        let bytes = read(self.open(SUMS).await?, MAX_SUMS).await;
        let bytes = bytes.map_err(|failure| Error::Unavailable(format!("{SUMS}: {failure}")))?;
        Ok(parse_sums(&String::from_utf8_lossy(&bytes)))
    }

    /// Fetches a program beside those that are whole, and puts it in its place if
    /// it is the right one.
    async fn fetch(&self, path: &str, file: &Path, expected: &str) -> Result<(), Error> {
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", file.display()));
        let response = self.open(path).await?;
        let folder = file.parent().unwrap_or(&self.cache);
        fs::create_dir_all(folder).await.map_err(failed)?;
        let part = tempfile_name(file);
        let written = write(response, &part).await;
        let found = match written {
            Ok(found) => found,
            Err(reason) => {
                let _ = fs::remove_file(&part).await;
                return Err(Error::Unavailable(format!("{path} of the mirror: {reason}")));
            }
        };
        if found != expected {
            let _ = fs::remove_file(&part).await;
            return Err(Error::Unavailable(format!(
                "{path} of the mirror has SHA-256 {found}, and {expected} is expected"
            )));
        }
        let place = file.to_owned();
        let renamed = tokio::task::spawn_blocking(move || selvage_files::rename(&part, &place));
        renamed.await.map_err(io::Error::other).flatten().map_err(failed)
    }
}

/// Name of a file that is being fetched, of its own for each attempt.
pub(super) fn tempfile_name(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", uuid::Uuid::new_v4()))
}

/// Writes an answer to a file, and returns its SHA-256.
pub(super) async fn write(mut response: Response, part: &Path) -> Result<String, String> {
    let mut file = fs::File::create(part).await.map_err(|error| error.to_string())?;
    let (mut digest, mut length) = (Sha256::new(), 0);
    let broken = |error: selvage_fetch::TransferError| selvage_api::chain(&error.without_url());
    while let Some(piece) = response.chunk().await.map_err(broken)? {
        length += piece.len() as u64;
        if length > MAX_PROGRAM {
            return Err(format!("is larger than {MAX_PROGRAM} bytes"));
        }
        digest.update(&piece);
        file.write_all(&piece).await.map_err(|error| error.to_string())?;
    }
    file.sync_all().await.map_err(|error| error.to_string())?;
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads lines of `sha256sum`; others are left out.
fn parse_sums(text: &str) -> Digests {
    let line = |line: &str| {
        let (digest, path) = line.split_once(' ')?;
        let hex = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let path = path.trim_start_matches([' ', '*']).trim_start_matches("./");
        hex.then(|| (path.to_owned(), digest.to_ascii_lowercase()))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
pub(super) mod tests;
