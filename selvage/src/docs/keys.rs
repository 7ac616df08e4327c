//! Settings that pages name, in commands and in files: each must be one that a
//! daemon takes, with a value that it understands.

use std::fs;

use selvage_kit::config::Loader;

use crate::config::Config;

#[test]
fn every_setting_of_every_page_is_one_that_there_is() {
    let (mut found, mut wrong) = (0, Vec::new());
    for (page, text) in super::pages() {
        for setting in settings(&text) {
            found += 1;
            let loaded = Loader::new().set(&setting).and_then(|loader| loader.load::<Config>());
            if let Err(error) = loaded {
                wrong.push(format!("{page}: --set {setting}: {error}"));
            }
        }
        for (line, block) in files(&text) {
            found += 1;
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("selvage.toml");
            fs::write(&path, block).unwrap();
            if let Err(error) = Loader::new().file(&path).load::<Config>() {
                wrong.push(format!("{page}:{line}: {error}"));
            }
        }
    }
    assert!(found > 20, "only {found} settings were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names of the sections that a configuration has.
fn sections() -> Vec<String> {
    let defaults = selvage_kit::config::dump(&Config::default()).unwrap();
    let tables = defaults.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    tables.map(|table| table.split('.').next().unwrap_or_default().to_owned()).collect()
}

fn is_ours(key: &str) -> bool {
    let first = key.split(['.', '=', ']']).next().unwrap_or_default();
    sections().iter().any(|section| section == first)
}

/// All `KEY=VALUE` after `--set` that are about a daemon; those of objects have no
/// section in front.
fn settings(text: &str) -> Vec<String> {
    let after = text.split("--set ").skip(1);
    let words = after.filter_map(|rest| {
        let quote = rest.chars().next().filter(|first| "'\"".contains(*first));
        let word = match quote {
            Some(quote) => rest[1..].split(quote).next(),
            None => rest.split([' ', '\n', '`', ')', ',']).next(),
        };
        word.map(|word| word.trim_end_matches(['.', ';', ':']).to_owned())
    });
    words.filter(|word| word.contains('=') && !word.contains('…') && is_ours(word)).collect()
}

/// Blocks of TOML that are configurations, with their lines.
fn files(text: &str) -> Vec<(usize, String)> {
    let mut files = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut block, line.trim()) {
            (None, "```toml") => block = Some((number, String::new())),
            (Some(_), "```") => files.extend(block.take()),
            (Some((_, content)), _) => content.extend([line, "\n"]),
            (None, _) => {}
        }
    }
    let is_file = |(_, block): &(usize, String)| {
        let table = block.lines().find_map(|line| line.strip_prefix('['));
        table.is_some_and(|table| is_ours(table.trim_start_matches('[')))
    };
    files.retain(is_file);
    files
}

#[test]
fn settings_are_distinguished_from_fields_of_objects() {
    let text = "`--set crm.https=true`, --set 'configs[0].config=x' --set \"dns.zones=[1]\" \
                --set crm.site=… and --set listen.port=1.\n";
    assert_eq!(settings(text), ["crm.https=true", "dns.zones=[1]", "listen.port=1"]);
    let page = "```toml\n[sha256]\na = 1\n```\n```toml\n[dns.update]\nserver = \"x\"\n```\n";
    assert_eq!(files(page), [(5, "[dns.update]\nserver = \"x\"\n".to_owned())]);
}
