//! Names and tags of volumes that LVM takes, and the words with which it
//! refuses others. They are checked before anything is run.

use crate::{Error, Result};

const LONGEST_NAME: usize = 127;
const LONGEST_TAG: usize = 1024;
const RESERVED_STARTS: [&str; 2] = ["snapshot", "pvmove"];
const RESERVED_PARTS: [&str; 16] = [
    "_cdata", "_cmeta", "_corig", "_cvol", "_wcorig", "_mlog", "_mimage", "_pmspare", "_rimage",
    "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_imeta", "_iorig",
];

/// A volume may have this name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
    let wrong = name.is_empty()
        || name.len() > LONGEST_NAME
        || name == "."
        || name == ".."
        || name.starts_with('-')
        || !name.bytes().all(fits);
    if wrong {
        return Err(Error::Invalid(format!("Logical volume name \"{name}\" is invalid.")));
    }
    let different = "are reserved. Please choose a different LV name.";
    if let Some(start) = RESERVED_STARTS.iter().find(|start| name.starts_with(*start)) {
        return Err(Error::Invalid(format!("Names starting \"{start}\" {different}")));
    }
    if let Some(part) = RESERVED_PARTS.iter().find(|part| name.contains(*part)) {
        return Err(Error::Invalid(format!("Names including \"{part}\" {different}")));
    }
    Ok(())
}

/// A volume may have this tag.
pub(crate) fn check_tag(tag: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-/=!:#&".contains(&byte);
    if tag.is_empty() || tag.len() > LONGEST_TAG || tag.starts_with('-') || !tag.bytes().all(fits) {
        return Err(Error::Invalid(format!("Invalid argument for --addtag: {tag}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_what_lvm_takes() {
        for good in ["lv1", "a+b_c.d-e", "..a", "5f0e", &"x".repeat(127)] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", "-a", "a b", "a/b", "ä", "a\n", &"x".repeat(128)] {
            let message = check_name(bad).unwrap_err().to_string();
            assert_eq!(message, format!("Logical volume name \"{bad}\" is invalid."));
        }
        let message = check_name("snapshot1").unwrap_err().to_string();
        let end = "are reserved. Please choose a different LV name.";
        assert_eq!(message, format!("Names starting \"snapshot\" {end}"));
        let message = check_name("pool_tmeta").unwrap_err().to_string();
        assert_eq!(message, format!("Names including \"_tmeta\" {end}"));
    }

    #[test]
    fn tags_are_what_lvm_takes() {
        for good in ["a", "k=v", "a/b:c#d&e!f", "x.y-z"] {
            check_tag(good).unwrap();
        }
        for bad in ["", "a b", "-a", "a,b", "é"] {
            let message = check_tag(bad).unwrap_err().to_string();
            assert_eq!(message, format!("Invalid argument for --addtag: {bad}"));
        }
    }
}
