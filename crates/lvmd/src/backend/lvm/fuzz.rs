//! Input of strangers for the fuzzer. Not for anything else.

use std::{fs::File, io};

use super::{group, label};

/// Reads the metadata of a volume group.
pub fn metadata(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = group::read(text);
    }
}

/// Reads the beginning of a disk that may be LVM's.
pub fn physical_volume(device: &File) -> io::Result<()> {
    let Some(head) = label::head(device)? else { return Ok(()) };
    for area in head.areas {
        if let Some(location) = label::locate_text(device, area)? {
            let text = label::text(device, &location)?;
            metadata(text.as_bytes());
        }
    }
    Ok(())
}
