//! Charts: where they come from, pinned by what is in them.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use selvage_fetch::Fetcher;
use selvage_runtime::private_directory;
use sha2::{Digest, Sha256};

use super::fetch;
use crate::{Error, ImageFolders, Result, error::During};

/// Larger charts are not fetched; helm takes none of more than 5 MiB from a
/// registry by default either.
const MAX_CHART: usize = 16 << 20;
const FILE: &str = "file://";
const DIGEST: &str = "#sha256:";
const FORMS: &str = "a chart is https://HOST/CHART.tgz#sha256:DIGEST, or file:///PATH in a folder \
                     of crm.image_folders";

/// Charts of a cloudlet.
pub(super) struct Charts<'a> {
    pub(super) folder: &'a Path,
    pub(super) images: &'a ImageFolders,
    pub(super) fetcher: &'a Fetcher,
}

impl Charts<'_> {
    /// Returns the file or folder of the chart that an app names.
    pub(super) async fn provide(&self, image_path: &str) -> Result<PathBuf> {
        if let Some(path) = image_path.strip_prefix(FILE) {
            return self.images.find(Path::new(path));
        }
        let Some((address, digest)) = pinned(image_path) else {
            return Err(Error::invalid("image_path", FORMS));
        };
        let path = self.folder.join(format!("{digest}.tgz"));
        if std::fs::read(&path).is_ok_and(|bytes| hex::encode(Sha256::digest(&bytes)) == digest) {
            return Ok(path);
        }
        let wrong = |reason: String| Error::invalid("image_path", format!("{address}: {reason}"));
        let bytes = fetch::bytes(self.fetcher, address, MAX_CHART).await.map_err(wrong)?;
        let found = hex::encode(Sha256::digest(&bytes));
        if found != digest {
            return Err(wrong(format!("its digest is sha256:{found}, not sha256:{digest}")));
        }
        self.keep(&path, &bytes)?;
        Ok(path)
    }

    fn keep(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        private_directory(self.folder).during("making a folder for charts")?;
        let new = path.with_extension("new");
        let mut file = std::fs::File::create(&new).during("keeping a chart")?;
        file.write_all(bytes).and_then(|()| file.sync_all()).during("keeping a chart")?;
        selvage_files::rename(&new, path).during("keeping a chart")
    }
}

/// Address and digest of a chart that is pinned.
fn pinned(image_path: &str) -> Option<(&str, &str)> {
    let (address, digest) = image_path.split_once(DIGEST)?;
    let hex = |letter: char| letter.is_ascii_digit() || ('a'..='f').contains(&letter);
    let fine = digest.len() == 64 && digest.chars().all(hex);
    (fine && (address.starts_with("https://") || address.starts_with("http://")))
        .then_some((address, digest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[tokio::test]
    async fn only_a_pinned_chart_or_one_of_the_operator_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        let images = ImageFolders::new([home.join("images")]);
        std::fs::create_dir_all(home.join("images/one")).unwrap();
        let folder = home.join("charts");
        let fetcher = fetch::tests::local();
        let charts = Charts { folder: &folder, images: &images, fetcher: &fetcher };
        let inside = format!("file://{}/images/one", home.display());
        assert_eq!(charts.provide(&inside).await.unwrap(), home.join("images/one"));
        let short = format!("https://charts.example/a.tgz#sha256:{}", "0".repeat(63));
        for unpinned in [
            "",
            "stable/prometheus",
            "/etc",
            "./chart",
            "--post-renderer=/bin/sh",
            "oci://charts.example/a:1",
            "https://charts.example/a.tgz",
            &short,
        ] {
            let error = charts.provide(unpinned).await.unwrap_err().to_string();
            assert_eq!(error, format!("image_path: {FORMS}"), "{unpinned}");
        }
        let outside = format!("file://{}", home.display());
        let error = charts.provide(&outside).await.unwrap_err().to_string();
        assert!(error.contains("crm.image_folders"), "{error}");
    }

    #[tokio::test]
    async fn a_chart_that_was_exchanged_is_refused_and_one_that_is_kept_is_not_fetched() {
        let directory = tempfile::tempdir().unwrap();
        let (folder, images) = (directory.path().join("charts"), ImageFolders::default());
        let fetcher = fetch::tests::local();
        let charts = Charts { folder: &folder, images: &images, fetcher: &fetcher };
        let good = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nchart".to_vec();
        let address = fetch::tests::server(good).await;
        let digest = hex::encode(Sha256::digest(b"chart"));
        let pinned = format!("{address}#sha256:{digest}");
        let path = charts.provide(&pinned).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"chart");
        // The server answered once and is gone.
        assert_eq!(charts.provide(&pinned).await.unwrap(), path);
        let bad = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nother".to_vec();
        let address = fetch::tests::server(bad).await;
        std::fs::write(&path, "damaged").unwrap();
        let error = charts.provide(&format!("{address}#sha256:{digest}")).await.unwrap_err();
        assert!(error.to_string().contains("its digest is sha256:"), "{error}");
    }
}
