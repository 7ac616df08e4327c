//! Tests of the documentation: every setting is on the configuration page, and
//! every command and every setting of every page is one that the program has.

#![allow(clippy::unwrap_used)]

mod commands;
mod keys;
mod settings;

use std::{fs, path::PathBuf};

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// All pages for users, each with its name and text.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec![repository().join("README.md")];
    let listed = fs::read_dir(repository().join("docs")).unwrap().flatten();
    paths.extend(
        listed
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "md")),
    );
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// The contracts, whose comments `/docs` and `selvage api` show, each with its name and
/// text without the marks of comments.
fn contracts() -> Vec<(String, String)> {
    let mut folders = vec![repository().join("proto")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "proto") {
                let text = fs::read_to_string(&path).unwrap().replace("//", " ");
                let words: Vec<&str> = text.split_whitespace().collect();
                found.push((path.display().to_string(), words.join(" ")));
            }
        }
    }
    found
}

/// The programs whose contracts are served are told of in the glossary. Elsewhere a
/// reader who never met them must not have to wonder what is meant.
#[test]
fn originals_are_mentioned_in_the_glossary_alone() {
    let pages = pages().into_iter().filter(|(name, _)| name != "glossary.md").chain(contracts());
    let mentions = |text: &str| text.to_lowercase().contains("the original");
    let wrong: Vec<String> =
        pages.filter(|(_, text)| mentions(text)).map(|(name, _)| name).collect();
    assert!(wrong.is_empty(), "{wrong:?} say \"the original\"");
}

/// Variable that makes the test write the page instead of comparing it.
const UPDATE: &str = "SELVAGE_UPDATE_DOCS";

#[test]
fn every_setting_is_on_the_configuration_page() {
    let path = repository().join("docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let config = crate::config::Config { data: "DATA".into(), ..crate::config::Config::default() };
    let defaults = selvage_kit::config::dump(&config).unwrap();
    let table = settings::table(&repository(), &defaults);
    let current = settings::replace(&page, &table).unwrap();
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, &current).unwrap();
    } else {
        assert!(
            page == current,
            "docs/configuration.md is not current: run this test with {UPDATE}=1"
        );
    }
    for key in ["listen.port", "node.textfiles", "auth.oidc", "kaas.maas.url", "log.filter"] {
        assert!(table.contains(&format!("| `{key}` |")), "{key} is missing:\n{table}");
    }
}
