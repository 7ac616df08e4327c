//! Sizes as people write them.

const GIB: u64 = 1 << 30;

/// Whole GiB: `10`, `10G`, `2T`, `1024MiB`.
pub(super) fn gib(text: &str) -> Result<u64, String> {
    let size = match text.parse::<u64>() {
        Ok(size) => size.checked_mul(GIB),
        Err(_) => Some(bytes(text)?),
    };
    let size = size.ok_or_else(|| format!("{text} is more than there is"))?;
    if size == 0 || !size.is_multiple_of(GIB) {
        return Err(format!("{text} is not a whole number of GiB, one at least"));
    }
    Ok(size / GIB)
}

/// Bytes: `512M`, `10G`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    let scale = match unit {
        "" => 1,
        "k" => 1u64 << 10,
        "m" => 1 << 20,
        "g" => GIB,
        "t" => 1 << 40,
        "p" => 1 << 50,
        _ => return Err(format!("{text}: sizes are such as 512M, 10G or 2T")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text}: sizes are such as 512M, 10G or 2T"))?;
    number.checked_mul(scale).ok_or_else(|| format!("{text} is more than there is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_are_gib() {
        for (text, size) in [("10", 10), ("10G", 10), ("2T", 2048), ("1024MiB", 1), ("3gb", 3)] {
            assert_eq!(gib(text), Ok(size), "{text}");
        }
        for text in
            ["0", "", "512M", "-1", "10X", "1.5G", "99999999999999999999", "18014398509481984"]
        {
            assert!(gib(text).is_err(), "{text}");
        }
        assert_eq!(bytes("512M"), Ok(512 << 20));
    }
}
