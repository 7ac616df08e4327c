//! The table of settings, from the structs that hold them and their defaults.

use std::{collections::BTreeMap, fs, path::Path};

const BEGIN: &str = "<!-- settings: made by a test from the code -->\n";
const END: &str = "<!-- end of settings -->\n";

/// Sections that are no part's: their file and struct.
const SECTIONS: [(&str, &str, &str); 6] = [
    ("listen", "selvage/src/config/serving.rs", "Listen"),
    ("tls", "selvage/src/config/serving.rs", "Tls"),
    ("store", "selvage/src/config/serving.rs", "Store"),
    ("auth", "selvage/src/config/serving.rs", "Auth"),
    ("join", "crates/membership/src/options.rs", "Options"),
    ("log", "crates/kit/src/telemetry/logging.rs", "LogOptions"),
];

/// The page with the table in its place.
pub(super) fn replace(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// Rows of all settings; `defaults` is a configuration as it is dumped.
pub(super) fn table(repository: &Path, defaults: &str) -> String {
    let defaults = values(defaults);
    let mut rows = vec!["\n| key | default | meaning |".to_owned(), "|---|---|---|".to_owned()];
    let read = |path: &str| fs::read_to_string(repository.join(path)).unwrap_or_default();
    for field in fields(&read("selvage/src/parts.rs"), "Config") {
        let section = field.name.as_str();
        let known = SECTIONS.iter().find(|(name, ..)| *name == section);
        match known {
            Some((_, path, name)) => add(&mut rows, section, &read(path), name, &defaults),
            None => rows.push(row(section, &field, &defaults)),
        }
    }
    for part in part_sections(&read("selvage/src/parts.rs")) {
        let text = sources(&repository.join(format!("crates/{part}/src")));
        add(&mut rows, &part, &text, "Options", &defaults);
    }
    rows.join("\n") + "\n\n"
}

/// Names of the sections of parts, in the order of the table of parts.
fn part_sections(parts: &str) -> Vec<String> {
    let table = parts.split("\nparts! {").nth(1).unwrap_or_default();
    let lines = table.lines().take_while(|line| *line != "}");
    let names = lines.filter(|line| line.contains("=>") && !line.trim().starts_with("//"));
    names.filter_map(|line| Some(line.trim().split_once(':')?.0.to_owned())).collect()
}

/// The options of a crate: its `options.rs` first, then the rest of it.
fn sources(folder: &Path) -> String {
    let mut text = fs::read_to_string(folder.join("options.rs")).unwrap_or_default();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("options.rs") {
                text += &fs::read_to_string(path).unwrap_or_default();
            }
        }
    }
    text
}

/// Adds the fields of a struct, those of inner structs under their own names.
fn add(
    rows: &mut Vec<String>,
    prefix: &str,
    text: &str,
    name: &str,
    defaults: &BTreeMap<String, String>,
) {
    for field in fields(text, name) {
        let key = format!("{prefix}.{}", field.name);
        if text.contains(&format!("struct {} {{", field.kind)) {
            add(rows, &key, text, &field.kind, defaults);
        } else {
            rows.push(row(&key, &field, defaults));
        }
    }
}

fn row(key: &str, field: &Field, defaults: &BTreeMap<String, String>) -> String {
    let default = match defaults.get(key).map(String::as_str) {
        // Depends on who starts it.
        _ if key == "data" => "`/var/lib/selvage`, or `~/.local/share/selvage`".to_owned(),
        None | Some("\"\"") => "–".to_owned(),
        Some(value) => format!("`{}`", value.trim_matches('"')),
    };
    let mut meaning = field.meaning.replace('|', "\\|");
    if meaning.ends_with('.') && !meaning.contains(". ") {
        meaning.pop();
    }
    format!("| `{key}` | {default} | {meaning} |")
}

struct Field {
    name: String,
    kind: String,
    meaning: String,
}

/// The fields of a struct that can be configured, as rustfmt writes them.
fn fields(text: &str, name: &str) -> Vec<Field> {
    let Some((_, body)) = text.split_once(&format!("struct {name} {{\n")) else {
        return Vec::new();
    };
    let (mut fields, mut meaning, mut skipped) = (Vec::new(), String::new(), false);
    for line in body.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(comment) = line.strip_prefix("///") {
            if !meaning.is_empty() {
                meaning.push(' ');
            }
            meaning.push_str(comment.trim());
        } else if line.starts_with("#[") {
            skipped |= line.contains("serde(skip)");
        } else if let Some(rest) = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")) {
            if let Some((name, kind)) = rest.split_once(": ").filter(|_| !skipped) {
                let kind = kind.trim_end_matches(',').to_owned();
                fields.push(Field {
                    name: name.into(),
                    kind,
                    meaning: std::mem::take(&mut meaning),
                });
            }
            (meaning, skipped) = (String::new(), false);
        }
    }
    fields
}

/// Values by key of a configuration as it is dumped.
fn values(dump: &str) -> BTreeMap<String, String> {
    let (mut values, mut section) = (BTreeMap::new(), String::new());
    let mut lines = dump.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((key, value)) = line.split_once(" = ") {
            let mut value = value.to_owned();
            while value.starts_with('[') && !value.ends_with(']') {
                let Some(more) = lines.next() else { break };
                value += more.trim();
            }
            values.insert(
                format!("{section}{key}"),
                value.replace(",]", "]").replace("\",\"", "\", \""),
            );
        }
    }
    values
}
