//! `/proc/self/smaps`: what is mapped where, and how much of it is no longer
//! as it is in its file.

use std::ops::Range;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<usize>,
    permissions: String,
    path: String,
    /// Kilobytes that this process changed, in memory and swapped out; none
    /// where the kernel does not tell.
    changed: Option<u64>,
    swapped: Option<u64>,
}

impl Mapping {
    /// Returns whether it is a file of which nothing can be written here.
    pub(crate) fn is_read_only_file(&self) -> bool {
        let permissions = self.permissions.as_bytes();
        self.path.starts_with('/')
            && permissions.first() == Some(&b'r')
            && permissions.get(1) == Some(&b'-')
            && permissions.get(3) == Some(&b'p')
    }

    /// Returns whether all of it can be read from the file again. What the
    /// dynamic linker changed and then protected cannot.
    pub(crate) fn is_as_in_file(&self) -> bool {
        self.changed == Some(0) && self.swapped == Some(0)
    }
}

/// The mappings of a `smaps` file.
pub(crate) fn read(text: &str) -> impl Iterator<Item = Mapping> {
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let mut mapping = lines.find_map(head)?;
        while let Some(line) = lines.next_if(|line| head(line).is_none()) {
            let kilobytes = |line: &str| line.split_whitespace().next()?.parse().ok();
            if let Some(figure) = line.strip_prefix("Anonymous:") {
                mapping.changed = kilobytes(figure);
            } else if let Some(figure) = line.strip_prefix("Swap:") {
                mapping.swapped = kilobytes(figure);
            }
        }
        Some(mapping)
    })
}

/// The first line of a mapping.
fn head(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let permissions = words.next()?.to_owned();
    let path = words.nth(3).unwrap_or_default().to_owned();
    Some(Mapping { range, permissions, path, changed: None, swapped: None })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SMAPS: &str = "\
5577e0e6a000-5577e2739000 r--p 00000000 fe:00 42   /usr/bin/selvage
Size:              25404 kB
Rss:               10312 kB
Anonymous:             0 kB
Swap:                  0 kB
SwapPss:               0 kB
VmFlags: rd mr mw me sd
5577e2739000-5577e6c6c000 r-xp 018cf000 fe:00 42   /usr/bin/selvage (deleted)
Anonymous:             0 kB
Swap:                  4 kB
5577e6c6c000-5577e6ff6000 r--p 05e01000 fe:00 42   /usr/bin/selvage
Anonymous:          3624 kB
Swap:                  0 kB
5577e6ff6000-5577e7000000 rw-p 0618b000 fe:00 42   /usr/bin/selvage
Anonymous:             0 kB
Swap:                  0 kB
7f1e38071000-7f1e38081000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7f1e38081000-7f1e38091000 r--s 00000000 fe:00 43   /etc/cache
Anonymous:             0 kB
Swap:                  0 kB
7f1e38091000-7f1e380a1000 r--p 00000000 fe:00 44   /usr/lib/old-kernel.so
";

    #[test]
    fn only_what_can_be_read_again_is_given_back() {
        let mappings: Vec<Mapping> = read(SMAPS).collect();
        assert_eq!(mappings.len(), 7);
        assert_eq!(mappings[0].range, 0x5577_e0e6_a000..0x5577_e273_9000);
        let given: Vec<bool> = mappings
            .iter()
            .map(|mapping| mapping.is_read_only_file() && mapping.is_as_in_file())
            .collect();
        assert_eq!(given, [true, false, false, false, false, false, false]);
    }
}
