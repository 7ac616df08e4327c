//! One record of `/dev/kmsg`:
//! `priority,sequence,microseconds,flags[,…];text` and lines of ` KEY=VALUE`.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::time::{self, Boot};

/// Names of the levels, most urgent first.
const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// Names of the facilities. 12 to 15 have none.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp", "", "", "", "", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// A record that does not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("kernel message should contain a prefix")]
    NoPrefix,
    // The text with its typo, which clients know.
    #[error("message metdata should have at least 3 parts, got {0}")]
    FewParts(usize),
    #[error("error parsing {part} of a kernel message: {text:?} is not a number")]
    NotANumber { part: &'static str, text: String },
}

/// One record of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub facility: u32,
    /// Level, from 0 (emergency) to 7 (debug).
    pub level: u8,
    pub sequence: u64,
    /// Time of the record, in microseconds since boot.
    pub micros: u64,
    /// Caller, if the kernel names it: `T` and a thread, or `C` and a processor.
    pub caller: Option<String>,
    /// The text with its trailing newline, escapes taken back.
    pub text: Vec<u8>,
    /// Lines of ` KEY=VALUE`, as they stand.
    pub tags: Vec<u8>,
}

/// Reads a record.
pub fn parse(bytes: &[u8]) -> Result<Record, Malformed> {
    let colon = bytes.iter().position(|&byte| byte == b';').ok_or(Malformed::NoPrefix)?;
    let (prefix, message) = (&bytes[..colon], &bytes[colon + 1..]);
    let parts: Vec<&[u8]> = prefix.split(|&byte| byte == b',').collect();
    let &[priority, sequence, micros, ref more @ ..] = parts.as_slice() else {
        return Err(Malformed::FewParts(parts.len()));
    };
    let priority: u32 = number("the priority", priority)?;
    let caller = more.iter().find_map(|part| part.strip_prefix(b"caller="));
    let end = message.iter().position(|&byte| byte == b'\n').map_or(message.len(), |end| end + 1);
    let mut text = plain(&message[..end]).into_owned();
    if text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    Ok(Record {
        facility: priority >> 3,
        level: (priority & 7) as u8,
        sequence: number("the sequence", sequence)?,
        micros: number("the time", micros)?,
        caller: caller.map(|caller| String::from_utf8_lossy(caller).into_owned()),
        text,
        tags: plain(&message[end..]).into_owned(),
    })
}

fn number<N: std::str::FromStr>(part: &'static str, text: &[u8]) -> Result<N, Malformed> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|_| Malformed::NotANumber { part, text: text.clone().into_owned() })
}

/// Takes back `\xNN` and `\\`. What is no escape stays.
fn plain(escaped: &[u8]) -> Cow<'_, [u8]> {
    if !escaped.contains(&b'\\') {
        return Cow::Borrowed(escaped);
    }
    let mut plain = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&byte, after)) = rest.split_first() {
        let (meant, after) = match (byte, after) {
            (b'\\', [b'x', high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (byte, rest.get(1..).unwrap_or_default()),
            },
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            _ => (byte, after),
        };
        plain.push(meant);
        rest = after;
    }
    Cow::Owned(plain)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// The number of a level by its name.
pub(super) fn level(name: &str) -> Option<u8> {
    let at = LEVELS.iter().position(|&known| known == name)?;
    u8::try_from(at).ok()
}

/// The number of a facility by its name, or by the number itself.
pub(super) fn facility(name: &str) -> Option<u32> {
    if name.is_empty() {
        return None;
    }
    let at = FACILITIES.iter().position(|&known| known == name);
    at.and_then(|at| u32::try_from(at).ok()).or_else(|| name.parse().ok())
}

fn facility_name(facility: u32) -> Cow<'static, str> {
    let known = usize::try_from(facility).ok().and_then(|at| FACILITIES.get(at));
    match known {
        Some(&name) if !name.is_empty() => Cow::Borrowed(name),
        _ => Cow::Owned(facility.to_string()),
    }
}

impl Record {
    fn level_name(&self) -> &'static str {
        LEVELS[usize::from(self.level & 7)]
    }

    /// `facility:   level: [time]: text`, with the lines of tags after it.
    pub fn to_text(&self, boot: Boot) -> Vec<u8> {
        let mut line = head(&facility_name(self.facility), self.level_name(), boot, self.micros);
        line.extend_from_slice(&self.text);
        line.extend_from_slice(&self.tags);
        line
    }

    /// The same as one JSON object on a line.
    pub fn to_json(&self, boot: Boot) -> Vec<u8> {
        let mut object = json!({
            "sequence": self.sequence,
            "time": time::rfc3339(boot.at(self.micros)),
            "facility": facility_name(self.facility),
            "level": self.level_name(),
            "message": String::from_utf8_lossy(self.text.trim_ascii_end()),
        });
        if let Some(caller) = &self.caller {
            object["caller"] = caller.clone().into();
        }
        let tags: Map<String, Value> = String::from_utf8_lossy(&self.tags)
            .lines()
            .filter_map(|line| line.trim().split_once('='))
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect();
        if !tags.is_empty() {
            object["tags"] = tags.into();
        }
        format!("{object}\n").into_bytes()
    }
}

/// Line that replaces records that are lost.
pub(super) fn gap(lost: u64, before: &Record, boot: Boot, as_json: bool) -> Vec<u8> {
    if as_json {
        let time = time::rfc3339(boot.at(before.micros));
        return format!("{}\n", json!({"time": time, "lost": lost})).into_bytes();
    }
    let mut line = head("syslog", "warning", boot, before.micros);
    let records = if lost == 1 { "message was" } else { "messages were" };
    line.extend_from_slice(format!("{lost} {records} overwritten before being read\n").as_bytes());
    line
}

fn head(facility: &str, level: &str, boot: Boot, micros: u64) -> Vec<u8> {
    format!("{facility}: {level:>7}: [{}]: ", time::rfc3339(boot.at(micros))).into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-15T20:04:55.883Z
    const BOOT: Boot = Boot::new(1_794_773_095_883_000_000);

    fn text(record: &[u8]) -> String {
        String::from_utf8(parse(record).unwrap().to_text(BOOT)).unwrap()
    }

    #[test]
    fn the_golden_record_comes_out_byte_for_byte() {
        let record =
            b"30,361,1798096451,-;kt daemon.info caf\\xc3\\xa9 tab\\x09here back\\x5cslash\n";
        assert_eq!(
            text(record),
            "daemon:    info: [2026-11-15T20:34:53.979451Z]: kt daemon.info café tab\there back\\slash\n"
        );
    }

    #[test]
    fn lines_of_tags_come_after_the_text() {
        let record = b"6,339,5140900,-,caller=T1;NET: Registered\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n";
        assert_eq!(
            text(record),
            "kern:    info: [2026-11-15T20:05:01.0239Z]: NET: Registered\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n"
        );
        let parsed = parse(record).unwrap();
        assert_eq!(parsed.caller.as_deref(), Some("T1"));
        let object: Value = serde_json::from_slice(&parsed.to_json(BOOT)).unwrap();
        assert_eq!(object["tags"]["SUBSYSTEM"], "acpi");
        assert_eq!(
            (&object["sequence"], &object["message"]),
            (&json!(339), &json!("NET: Registered"))
        );
    }

    #[test]
    fn facilities_have_their_own_names_and_no_number_is_too_high() {
        for (priority, head) in [
            (128, "local0:   emerg: "),
            (131, "local0:     err: "),
            (144, "local2:   emerg: "),
            (190, "local7:    info: "),
            (11, "user:     err: "),
            (96, "12:   emerg: "),
            (1000, "125:   emerg: "),
            (u32::MAX, "536870911:   debug: "),
        ] {
            let line = text(format!("{priority},1,0,-;x\n").as_bytes());
            assert!(line.starts_with(head), "{priority}: {line}");
        }
        assert_eq!(
            (facility("local7"), facility("125"), facility("")),
            (Some(23), Some(125), None)
        );
    }

    #[test]
    fn what_does_not_read_says_why() {
        let refusal = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert_eq!(refusal(b"6,1,2"), "kernel message should contain a prefix");
        assert_eq!(refusal(b"6,1;x"), "message metdata should have at least 3 parts, got 2");
        assert!(refusal(b"six,1,2;x").contains("priority"));
        assert_eq!(text(b"6,1,2;x"), text(b"6,1,2,-;x\n"), "flags and newline may be missing");
    }

    #[test]
    fn only_escapes_are_taken_back() {
        assert_eq!(&*plain(br"a\x5cb\\c\xg1\x4"), br"a\b\c\xg1\x4");
        assert_eq!(&*plain(br"\"), br"\");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_stumble(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(record) = parse(&bytes) {
                let _ = record.to_text(BOOT);
                let json = record.to_json(BOOT);
                prop_assert!(serde_json::from_slice::<Value>(&json).is_ok());
            }
        }
    }
}
