//! Credentials of a repository are found nowhere but in memory.

use std::{fs, os::unix::process::ExitStatusExt, path::Path, process::Command};

use selvage_api::proto::data_source::S3;

use crate::site::{
    MIB, ObjectStore, PASSWORD, SECRET_KEY, Site, TOKEN, directory, fill, restore_request,
};

const PROXY: &str = "canary-proxy-word-03aa";

/// Files below a folder that hold one of the words.
fn holders(folder: &Path, words: &[&str], found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            holders(&entry.path(), words, found);
        } else if kind.is_file() && entry.path().extension().is_none_or(|end| end != "img") {
            let content = fs::read(entry.path()).unwrap();
            for word in words {
                if content.windows(word.len()).any(|part| part == word.as_bytes()) {
                    found.push(format!("{} holds {word}", entry.path().display()));
                }
            }
        }
    }
}

#[tokio::test]
async fn keys_are_in_no_file_no_log_no_error_and_no_argument() {
    let Some(mut site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, 2 * MIB, 1);
    let store = ObjectStore::moto();
    let mut place = store.as_ref().map_or_else(|| directory("s"), |store| store.place("s"));
    place.session_token = TOKEN.into();
    site.backed_up("one", "vol1", &place).await;
    let mut outputs = Vec::new();
    // Failures of all kinds, with the keys in hand.
    let words = [SECRET_KEY, TOKEN, PASSWORD, PROXY];
    let proxied = format!("http://somebody:{PROXY}@127.0.0.1:1");
    let failing = [
        S3 { path: "nobucket-at-all/x".into(), ..place.clone() },
        S3 { encryption_key: format!("{PASSWORD}-not"), ..place.clone() },
        S3 { endpoint: format!("https://x:{SECRET_KEY}@127.0.0.1:1"), ..place.clone() },
    ];
    for (number, place) in failing.iter().enumerate() {
        outputs.push(site.back_up(&format!("bad{number}"), "vol1", place).await.msg);
        let mut volumes = site.volumes().await;
        let failed = volumes.create_lv(restore_request("new", place.clone(), true)).await;
        outputs.push(format!("{:?}", failed.unwrap_err()));
    }
    // One that is cut off, with a proxy that does not answer.
    let unreachable = S3 {
        http_proxy: proxied.clone(),
        https_proxy: proxied,
        endpoint: "http://127.0.0.1:9".into(),
        ..place.clone()
    };
    let request = crate::site::request("cut", "vol1", Some(unreachable));
    site.volumes().await.create_backup(request).await.unwrap();
    let arguments = fs::read(format!("/proc/{}/cmdline", site.selvage().pid())).unwrap();
    outputs.push(String::from_utf8_lossy(&arguments).into_owned());
    let environment = fs::read(format!("/proc/{}/environ", site.selvage().pid())).unwrap();
    outputs.push(String::from_utf8_lossy(&environment).into_owned());
    outputs.push(site.selvage().log());
    site.kill();
    for text in &outputs {
        assert!(words.iter().all(|word| !text.contains(word)), "{text}");
    }
    let mut found = Vec::new();
    holders(&site.path(""), &words, &mut found);
    assert_eq!(found, Vec::<String>::new());
}

#[tokio::test]
async fn a_crash_leaves_no_image_of_memory() {
    let Some(mut site) = Site::new() else { return };
    let pid = site.selvage().pid().to_string();
    let raised = Command::new("prlimit").args(["--core=unlimited", "--pid", &pid]).status();
    assert!(raised.unwrap().success());
    let mut selvage = site.selvage.take().unwrap();
    selvage.signal(nix::sys::signal::Signal::SIGABRT);
    let status = selvage.wait();
    assert_eq!(status.signal(), Some(6));
    assert!(!status.core_dumped());
}
