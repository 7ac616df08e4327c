#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::HashMap, sync::atomic::Ordering};

use flate2::{Compression, write::GzEncoder};

use super::*;
use crate::{
    catalogue::Catalogue,
    members::mirror::tests::{Answer, Server, sha256},
};

const PROGRAM: &[u8] = b"#!/bin/sh\nexit 0\n";

fn artifact(folder: &str, version: &str, name: &str) -> MissingArtifact {
    MissingArtifact { folder: folder.into(), version: version.into(), name: name.into() }
}

/// An archive as the projects make them.
fn archive(member: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, content) in [("LICENSE", b"free".as_slice()), (member, PROGRAM)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_cksum();
        builder.append_data(&mut header, path, content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// Stands for all official hosts: each has a path of its own.
struct Hosts(Server);

impl Hosts {
    async fn with(files: HashMap<String, Answer>) -> Self {
        let find = move |path: &str| files.get(path).cloned().unwrap_or(Answer::Missing);
        Self(Server::start(find).await)
    }

    fn addresses(&self, scheme: &str) -> BTreeMap<String, ReleaseAddress> {
        let here = |text: &str| {
            let rest = text.strip_prefix("https://").unwrap();
            format!("{scheme}://localhost:{}/{rest}", self.0.port)
        };
        let official = Catalogue::load(None).unwrap().official;
        let moved = official.into_iter().map(|(folder, release)| {
            let ReleaseAddress { address, sha256, member } = release;
            (folder, ReleaseAddress { address: here(&address), sha256: here(&sha256), member })
        });
        moved.collect()
    }

    fn official(&self, scheme: &str, own: bool) -> Official {
        let cache = self.0.folder.path().to_owned();
        Official::new(self.addresses(scheme), own, self.0.ca.as_bytes(), cache).unwrap()
    }

    async fn get(&self, wanted: &MissingArtifact) -> Result<Option<(PathBuf, String)>, Error> {
        self.official("https", true).get(wanted, &Digests::new()).await
    }

    fn is_empty(&self) {
        let mut folders = vec![self.0.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                assert!(entry.path().is_dir(), "{} is left", entry.path().display());
                folders.push(entry.path());
            }
        }
    }
}

/// Addresses of a program at the official hosts, of its digest, and what is at the first.
struct Case {
    wanted: MissingArtifact,
    file: String,
    sums: String,
    body: Vec<u8>,
}

fn cases() -> Vec<Case> {
    let arch = architecture();
    let case = |wanted, file: String, sums: String, body| Case { wanted, file, sums, body };
    let kubelet = format!("/dl.k8s.io/release/v1.36.4/bin/linux/{arch}/kubelet");
    let github = "/github.com";
    let etcd = format!("{github}/etcd-io/etcd/releases/download/v3.6.8");
    let containerd = format!(
        "{github}/containerd/containerd/releases/download/v2.2.0/containerd-2.2.0-linux-{arch}.tar.gz"
    );
    let cni = format!(
        "{github}/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-{arch}-v1.9.1.tgz"
    );
    let coredns = format!(
        "{github}/coredns/coredns/releases/download/v1.14.2/coredns_1.14.2_linux_{arch}.tgz"
    );
    vec![
        case(
            artifact("kubernetes", "1.36.4", "kubelet"),
            kubelet.clone(),
            format!("{kubelet}.sha256"),
            PROGRAM.to_vec(),
        ),
        case(
            artifact("etcd", "3.6.8", "etcd"),
            format!("{etcd}/etcd-v3.6.8-linux-{arch}.tar.gz"),
            format!("{etcd}/SHA256SUMS"),
            archive(&format!("etcd-v3.6.8-linux-{arch}/etcd")),
        ),
        case(
            artifact("containerd", "2.2.0", "containerd"),
            containerd.clone(),
            format!("{containerd}.sha256sum"),
            archive("bin/containerd"),
        ),
        case(
            artifact("cni", "1.9.1", "ptp"),
            cni.clone(),
            format!("{cni}.sha256"),
            archive("./ptp"),
        ),
        case(
            artifact("coredns", "1.14.2", "coredns"),
            coredns.clone(),
            format!("{coredns}.sha256"),
            archive("coredns"),
        ),
    ]
}

impl Case {
    fn name(&self) -> &str {
        self.file.rsplit('/').next().unwrap()
    }

    /// Content that the hosts serve instead of the file, and the file's true digest.
    fn files(&self, answer: Answer) -> HashMap<String, Answer> {
        let sums = match self.wanted.folder.as_str() {
            "kubernetes" => sha256(&self.body),
            _ => format!("{}  other\n{}  {}\n", "0".repeat(64), sha256(&self.body), self.name()),
        };
        [(self.file.clone(), answer), (self.sums.clone(), Answer::Whole(sums.into_bytes()))].into()
    }
}

#[tokio::test]
async fn programs_of_all_projects_are_fetched_once() {
    for case in cases() {
        let hosts = Hosts::with(case.files(Answer::Whole(case.body.clone()))).await;
        let (file, digest) = hosts.get(&case.wanted).await.unwrap().unwrap();
        assert_eq!((std::fs::read(&file).unwrap(), digest), (PROGRAM.to_vec(), sha256(PROGRAM)));
        let asked = hosts.0.asked.load(Ordering::Relaxed);
        hosts.get(&case.wanted).await.unwrap().unwrap();
        assert_eq!(hosts.0.asked.load(Ordering::Relaxed), asked, "the second time it is here");
        std::fs::write(&file, "something else").unwrap();
        hosts.get(&case.wanted).await.unwrap().unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), PROGRAM, "damaged: fetched again");
    }
}

#[tokio::test]
async fn what_is_not_whole_or_not_right_is_not_kept() {
    for case in cases() {
        let hosts = Hosts::with(case.files(Answer::Whole(b"exchanged".to_vec()))).await;
        let error = hosts.get(&case.wanted).await.unwrap_err().to_string();
        let named = error.contains(&sha256(b"exchanged")) && error.contains(&sha256(&case.body));
        assert!(named, "{error}");
        hosts.is_empty();

        let hosts = Hosts::with(case.files(Answer::Truncated)).await;
        let error = hosts.get(&case.wanted).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        hosts.is_empty();

        let hosts = Hosts::with(HashMap::new()).await;
        let error = hosts.get(&case.wanted).await.unwrap_err().to_string();
        assert!(error.contains("404") && error.contains("localhost"), "{error}");
    }
}

#[tokio::test]
async fn redirects_lead_to_no_private_address() {
    let inside = Server::start(|_| Answer::Whole(PROGRAM.to_vec())).await;
    for case in cases() {
        let to = Answer::Redirect(format!("https://localhost:{}/inside", inside.port));
        let hosts = Hosts::with(case.files(to)).await;
        let error = hosts.get(&case.wanted).await.unwrap_err().to_string();
        assert!(error.contains("not public"), "{error}");
        hosts.is_empty();
        // The official names are no leave to ask this network, whatever they resolve to.
        let hosts = Hosts::with(case.files(Answer::Whole(case.body.clone()))).await;
        let official = hosts.official("https", false);
        let error = official.get(&case.wanted, &Digests::new()).await.unwrap_err().to_string();
        assert!(error.contains("not public"), "{error}");
        assert_eq!(hosts.0.asked.load(Ordering::Relaxed), 0);
    }
    assert_eq!(inside.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_catalogue_stands_above_what_a_project_says() {
    let all = cases();
    let etcd = &all[1];
    let hosts = Hosts::with(etcd.files(Answer::Whole(etcd.body.clone()))).await;
    let official = hosts.official("https", true);
    for (pinned, digest) in
        [("etcd/3.6.8/etcd", sha256(b"another")), (etcd.name(), sha256(b"another archive"))]
    {
        let pins = Digests::from([(pinned.to_owned(), digest.clone())]);
        let error = official.get(&etcd.wanted, &pins).await.unwrap_err().to_string();
        assert!(error.contains(&digest), "{error}");
        hosts.is_empty();
    }
    let pins = Digests::from([("etcd/3.6.8/etcd".to_owned(), sha256(PROGRAM))]);
    official.get(&etcd.wanted, &pins).await.unwrap().unwrap();
    // One that was fetched before it was named is not used either.
    let pins = Digests::from([("etcd/3.6.8/etcd".to_owned(), sha256(b"another"))]);
    assert!(official.get(&etcd.wanted, &pins).await.is_err());
}

#[tokio::test]
async fn without_tls_the_catalogue_has_to_name_digests() {
    let all = cases();
    let hosts = Hosts::with(all[0].files(Answer::Whole(PROGRAM.to_vec()))).await;
    let official = hosts.official("http", true);
    let error = official.get(&all[0].wanted, &Digests::new()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.contains("kaas.catalogue")), "{error}");
    let unknown = official.get(&artifact("helm", "1.0.0", "helm"), &Digests::new()).await;
    assert_eq!(unknown.unwrap(), None);
}

#[test]
fn digests_are_read_as_projects_write_them() {
    let digest = sha256(PROGRAM);
    for text in [
        digest.clone(),
        format!("{digest}\n"),
        format!("{digest}  etcd.tar.gz\n"),
        format!("{}  other\n{digest} *./out/etcd.tar.gz\n", "0".repeat(64)),
        format!("# sums\n\n{}  etcd.tar.gz", digest.to_uppercase()),
    ] {
        assert_eq!(find_sum(&text, "etcd.tar.gz").as_ref(), Some(&digest), "{text}");
    }
    for text in [String::new(), "<html>".into(), format!("{digest}  other"), digest[1..].into()] {
        assert_eq!(find_sum(&text, "etcd.tar.gz"), None, "{text}");
    }
}

#[test]
fn an_archive_gives_files_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "etcd", "/etc/passwd").unwrap();
    let (from, to) = (folder.path().join("a.tgz"), folder.path().join("etcd"));
    std::fs::write(&from, builder.into_inner().unwrap().finish().unwrap()).unwrap();
    assert!(take_out(&from, "etcd", &to).unwrap_err().to_string().contains("no file"));
    assert!(take_out(&from, "etcdutl", &to).unwrap_err().to_string().contains("not in it"));
    assert!(!to.exists());
}
