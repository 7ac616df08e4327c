//! Lengths of time as people write them.

use std::time::Duration;

/// Reads `90s`, `5m`, `1h30m`, `7d`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a length of time such as 30s, 5m, 1h30m or 7d");
    let mut total: u64 = 0;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit = match rest.as_bytes()[digits] {
            b's' => 1,
            b'm' => 60,
            b'h' => 3600,
            b'd' => 86_400,
            _ => return Err(wrong()),
        };
        let part = number.checked_mul(unit).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[digits + 1..];
    }
    if total == 0 || total > 100 * 365 * 86_400 {
        return Err(wrong());
    }
    Ok(Duration::from_secs(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        assert_eq!(parse("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "5", "s", "-1s", "5x", "0s", "1h 30m", "99999999999999999999s", "5µ"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
