//! YAML from strangers, read within bounds.

use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Options, options};

/// Larger texts are not even looked at.
const MAX_BYTES: usize = 1024 * 1024;
const MAX_DOCUMENTS: usize = 256;
const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 100_000;
/// Enough for honest use of anchors, far too little for a bomb.
const MAX_ALIASES: usize = 100;
const MAX_REPLAYED: usize = 20_000;

fn bounds() -> Options {
    options! {
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(MAX_BYTES),
            max_events: 3 * MAX_NODES,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_recorded_anchor_events: MAX_REPLAYED,
            max_recorded_anchor_bytes: MAX_BYTES,
            flow_nesting_limit: MAX_DEPTH,
            max_depth: MAX_DEPTH,
            max_documents: MAX_DOCUMENTS,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: MAX_BYTES,
            max_merge_keys: MAX_ALIASES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
            max_replay_stack_depth: 16,
            max_alias_expansions_per_anchor: MAX_ALIASES,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        with_snippet: false,
    }
}

/// The one document of a text.
pub(super) fn read(text: &str) -> Result<Value, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes, at most {MAX_BYTES} are possible", text.len()));
    }
    serde_saphyr::from_str_with_options(text, bounds()).map_err(|error| first_line(&error))
}

/// All documents of a text, empty ones left out.
pub(super) fn read_all(text: &str) -> Result<Vec<Value>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes, at most {MAX_BYTES} are possible", text.len()));
    }
    let parts = split(text);
    if parts.len() > MAX_DOCUMENTS {
        return Err(format!("{} documents, at most {MAX_DOCUMENTS} are possible", parts.len()));
    }
    let mut documents = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let document = read(part).map_err(|error| format!("document {}: {error}", number + 1))?;
        documents.push(document);
    }
    documents.retain(|document| !document.is_null());
    Ok(documents)
}

fn first_line(error: &serde_saphyr::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// The documents of a text, those without content left out. A document begins
/// at a line that is `---` or begins with `--- `; the same letters elsewhere,
/// as in a certificate inside a string, are content.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if let Some(rest) = marker(line, "---") {
            documents.push(&text[start..at]);
            // What stands behind the marker belongs to the new document.
            start = if rest.trim().is_empty() { end } else { end - rest.len() };
        } else if marker(line, "...").is_some() {
            documents.push(&text[start..at]);
            start = end;
        }
        at = end;
    }
    documents.push(&text[start..]);
    documents.retain(|document| has_content(document));
    documents
}

fn marker<'a>(line: &'a str, sign: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(sign)?;
    (rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n'])).then_some(rest)
}

fn has_content(document: &str) -> bool {
    document.lines().any(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fmt::Write;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// D27: the original cut at every `---`.
    #[test]
    fn documents_are_split_where_they_begin() {
        let text = "\
# first
a: 1
--- # second
pem: |
  -----BEGIN PUBLIC KEY-----
  ---
b: x---y
---
# nothing here
---
---- : odd
--- {c: 2}
...
d: 3
";
        let parts = split(text);
        assert_eq!(parts.len(), 5);
        assert_eq!(parts[0], "# first\na: 1\n");
        assert!(parts[1].contains("  ---\nb: x---y\n"));
        assert_eq!(parts[2], "---- : odd\n");
        assert_eq!(parts[3], " {c: 2}\n");
        assert_eq!(parts[4], "d: 3\n");
        assert_eq!(split("a: 1\r\n---\r\nb: 2\r\n").len(), 2);
        assert_eq!(split(""), [""; 0]);
        assert_eq!(
            read_all("a: 1\n---\n---\nb: [1, x]\n").unwrap(),
            [json!({"a": 1}), json!({"b": [1, "x"]})]
        );
    }

    #[test]
    fn honest_anchors_work() {
        let value = read("base: &base {a: 1}\nother:\n  <<: *base\n  b: 2\n").unwrap();
        assert_eq!(value["other"], json!({"a": 1, "b": 2}));
    }

    #[test]
    fn keys_need_not_be_text() {
        assert_eq!(read("80: a\ntrue: b\n").unwrap(), json!({"80": "a", "true": "b"}));
    }

    #[test]
    fn bombs_are_refused() {
        let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for level in 1..12 {
            let below = level - 1;
            let refs = vec![format!("*a{below}"); 9].join(", ");
            writeln!(laughs, "a{level}: &a{level} [{refs}]").unwrap();
        }
        assert!(read(&laughs).is_err());
        assert!(read(&"[".repeat(100_000)).is_err());
        assert!(read(&"- ".repeat(100_000)).is_err());
        assert!(read(&format!("[{}]", "1,".repeat(200_000))).is_err());
        assert!(read(&" ".repeat(MAX_BYTES + 1)).is_err());
        assert!(read_all(&"---\na: 1\n".repeat(300)).is_err());
        assert!(read("a: 1\na: 2\n").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-a-z:&*\\[\\]{}|>#'\"!%,. \n\t]{0,200}", any in ".*") {
            let _ = read_all(&text);
            let _ = read_all(&any);
        }

        #[test]
        fn splitting_loses_no_content(lines in prop::collection::vec("(---|a: 1|  ---|b---|)", 0..20)) {
            let text = lines.join("\n");
            let kept: usize = split(&text).iter().map(|part| part.matches("a: 1").count()).sum();
            prop_assert_eq!(kept, text.matches("a: 1").count());
        }
    }
}
