//! Lists of what had to be shown, and the tests that show it: `tests/defects.tsv`.
//! Here is checked that there are such tests; `./dev test` checks that they ran.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeSet, fs, path::Path};

/// Lists with numbers: part, list, last number, and those that are missing, because
/// they are the business of another part or of a method that no contract has.
const NUMBERED: [(&str, &str, u32, &[u32]); 6] = [
    // That instances were offered in any state is the match engine's.
    ("controller", "defects", 33, &[30]),
    // Of crms and their platforms, of match engines, of the far end of commands.
    (
        "controller",
        "notify defects",
        30,
        &[11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27],
    ),
    // The rest is the controller's.
    (
        "dme",
        "defects",
        30,
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 27, 28, 29],
    ),
    ("kaas", "defects", 23, &[]),
    // DiskUsage, which the contract does not have.
    ("node", "defects", 20, &[12]),
    // The lines of docs/security.md that hold.
    ("security", "review", 13, &[]),
];

struct Row {
    list: (String, String),
    number: Option<u32>,
    what: String,
    file: String,
    test: String,
    run_by: String,
}

fn rows() -> Vec<Row> {
    let text = include_str!("../defects.tsv");
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let row = |line: &str| {
        let columns: Vec<String> = line.split('\t').map(str::to_owned).collect();
        let [part, list, number, what, file, test, run_by] =
            <[String; 7]>::try_from(columns).unwrap_or_else(|_| panic!("not 7 columns: {line}"));
        let number = (!number.is_empty()).then(|| number.parse().expect("a number"));
        Row { list: (part, list), number, what, file, test, run_by }
    };
    lines.map(row).collect()
}

/// Attributes and comments above a function.
fn above(text: &str, function: &str) -> Option<Vec<String>> {
    let lines: Vec<&str> = text.lines().collect();
    let named = format!("fn {function}(");
    let at = lines.iter().position(|line| line.contains(&named))?;
    let above = lines[..at].iter().rev().map(|line| line.trim());
    Some(above.take_while(|line| line.starts_with(['#', '/'])).map(str::to_owned).collect())
}

/// Says what is wrong with a row, if anything is.
fn wrong(row: &Row) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(&row.file);
    let Ok(text) = fs::read_to_string(path) else { return Some("there is no such file".into()) };
    let Some(above) = above(&text, &row.test) else { return Some("there is no such test".into()) };
    if !above.iter().any(|line| line.starts_with("#[test") || line.starts_with("#[tokio::test")) {
        return Some("this function is no test".into());
    }
    let ignored = above.iter().any(|line| line.starts_with("#[ignore"));
    if ignored == row.run_by.is_empty() {
        return Some(format!("it is ignored: {ignored}, and run by {:?}", row.run_by));
    }
    None
}

#[test]
fn every_named_test_is_there() {
    let rows = rows();
    assert!(rows.len() > 200, "{}", rows.len());
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let Row { list: (part, list), what, file, test, .. } = row;
            Some(format!("{part}, {list}: {what}: {file} {test}: {}", wrong(row)?))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_number_is_left_out() {
    let rows = rows();
    for (part, list, last, missing) in NUMBERED {
        let list = (part.to_owned(), list.to_owned());
        let shown: BTreeSet<u32> =
            rows.iter().filter(|row| row.list == list).filter_map(|row| row.number).collect();
        let absent: Vec<u32> = (1..=last).filter(|number| !shown.contains(number)).collect();
        assert_eq!(absent, missing, "{list:?}");
    }
    assert!(selvage_api::method("/machine.MachineService/DiskUsage").is_none());
}
