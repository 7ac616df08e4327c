//! Amounts as Kubernetes writes them: `2`, `1500m`, `16Ki`, `1.5G`, `1e3`.

/// Suffixes and what they stand for; longer ones first.
const UNITS: [(&str, f64); 14] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// Returns the number; none for what is no amount.
pub fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    let found = UNITS.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)));
    let (digits, unit) = found.unwrap_or((text, 1.0));
    let digits = match digits.strip_suffix('E') {
        Some(exa) if found.is_none() => return number(exa).map(|number| number * 1e18),
        _ => digits,
    };
    number(digits).map(|number| number * unit)
}

fn number(text: &str) -> Option<f64> {
    let looks = text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    let number: f64 = looks.then(|| text.parse().ok()).flatten()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// Returns a whole number of what it counts; zero for what is no amount.
pub fn whole(text: &str) -> u64 {
    // Beyond what fits it is as large as can be.
    parse(text).unwrap_or_default() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_an_amount_is_read() {
        for (text, wanted) in [
            ("2", 2.0),
            ("1500m", 1.5),
            ("0.5", 0.5),
            ("16Ki", 16_384.0),
            ("1.5Gi", 1_610_612_736.0),
            ("3G", 3e9),
            ("2E", 2e18),
            ("1e3", 1000.0),
            ("1E3", 1000.0),
            ("250000000n", 0.25),
            (" 7 ", 7.0),
        ] {
            let read = parse(text);
            assert!(read.is_some_and(|read| (read - wanted).abs() < 1e-6), "{text}: {read:?}");
        }
        for bad in ["", "m", "x", "1x", "-1", "1 Gi", "inf", "NaN", "0x10", "1e999"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(whole("3900m"), 3);
        assert_eq!(whole("what"), 0);
    }
}
