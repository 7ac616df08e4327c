//! Numbers as the tables show them.

/// Bytes by the largest unit of 1024 that leaves something before the point,
/// one digit after it at most: `12M`, `1.5G`, `512B`.
pub(crate) fn binary(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    let mut scale = 1u64;
    while unit + 1 < UNITS.len() && bytes / scale >= 1024 {
        scale *= 1024;
        unit += 1;
    }
    let number = format!("{:.1}", bytes as f64 / scale as f64);
    format!("{}{}", number.trim_end_matches(".0"), UNITS[unit])
}

/// A length of time in whole seconds: `1h2m3s`, `45s`.
pub(crate) fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_letter() {
        for (bytes, text) in [
            (0, "0B"),
            (512, "512B"),
            (1024, "1K"),
            (1536, "1.5K"),
            (12 << 20, "12M"),
            ((1 << 30) + (1 << 29), "1.5G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(binary(bytes), text);
        }
    }

    #[test]
    fn spans_begin_with_what_is_not_nought() {
        assert_eq!([span(-3), span(45), span(61), span(3600)], ["0s", "45s", "1m1s", "1h0m0s"]);
    }
}
