//! Numbers as the clients of the original dashboard read them, and sentences.

const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// `777.32 GiB`: two decimals, steps of 1024.
pub(crate) fn bytes(count: f64) -> String {
    let mut count = if count.is_finite() && count > 0.0 { count } else { 0.0 };
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if count < 1024.0 {
            break;
        }
        count /= 1024.0;
        unit = next;
    }
    format!("{count:.2} {unit}")
}

/// `853.00 B/s rd`.
pub(crate) fn read_rate(rate: f64) -> String {
    format!("{}/s rd", bytes(rate))
}

/// `1 ops/s rd`.
pub(crate) fn ops(rate: f64, what: &str) -> String {
    let rate = if rate.is_finite() && rate > 0.0 { rate.round() } else { 0.0 };
    format!("{rate:.0} ops/s {what}")
}

/// `3 cloudlets`, `1 cloudlet`.
pub(crate) fn counted(count: usize, one: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {one}{end}")
}

/// Text from outside, cut to a bearable length and without characters that
/// turn around or hide what follows.
pub(crate) fn outside(text: &str, longest: usize) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => ' ',
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    let mut cut: String = text.chars().take(longest).map(shown).collect();
    if text.chars().nth(longest).is_some() {
        cut.push('…');
    }
    cut
}

/// A word for a shell: as it is where that is safe, quoted otherwise.
pub(crate) fn quoted(word: &str) -> String {
    let word = outside(word, 300);
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_the_original_wrote_them() {
        assert_eq!(bytes(834_642_362_886.0), "777.32 GiB");
        assert_eq!(bytes(0.0), "0.00 B");
        assert_eq!(bytes(1023.0), "1023.00 B");
        assert_eq!(bytes(1024.0), "1.00 KiB");
        assert_eq!(
            bytes(f64::MAX.sqrt()),
            format!("{:.2} PiB", f64::MAX.sqrt() / 1024_f64.powi(5))
        );
        assert_eq!(bytes(f64::NAN), "0.00 B");
        assert_eq!(read_rate(853.0), "853.00 B/s rd");
        assert_eq!(ops(1.0, "rd"), "1 ops/s rd");
        assert_eq!(ops(-1.0, "wr"), "0 ops/s wr");
        assert_eq!(
            (counted(1, "machine"), counted(2, "machine")),
            ("1 machine".into(), "2 machines".into())
        );
    }

    #[test]
    fn text_from_outside_is_short_and_shows_what_it_is() {
        assert_eq!(outside("a\u{202e}b\x1b[31m\nc", 99), "a\u{fffd}b\u{fffd}[31m c");
        assert_eq!(outside(&"x".repeat(10_000), 10).chars().count(), 11);
        assert_eq!(outside("<img onerror=x>", 99), "<img onerror=x>");
    }

    #[test]
    fn words_cannot_leave_their_command() {
        assert_eq!(quoted("tmus/cloud-1"), "tmus/cloud-1");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("x'; rm -rf /; '"), r"'x'\''; rm -rf /; '\'''");
        assert_eq!(quoted("$(id)"), "'$(id)'");
        assert_eq!(quoted(""), "''");
    }
}
