//! Type and permissions of a file, in the bit layout that the contract has
//! them in (Go's `os.FileMode`).

const FOLDER: u32 = 1 << 31;
const LINK: u32 = 1 << 27;
/// Everything that is no regular file: folder, symbolic link, device, pipe,
/// socket, character device, irregular.
const TYPES: u32 = FOLDER | LINK | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19;
/// A letter a bit, from bit 31 down.
const LETTERS: [char; 13] = ['d', 'a', 'l', 'T', 'L', 'D', 'p', 'S', 'u', 'g', 'c', 't', '?'];

/// Such as `drwxr-xr-x` or `Lrwxrwxrwx`.
pub(crate) fn text(mode: u32) -> String {
    let is_set = |bit: u32| mode >> bit & 1 == 1;
    let mut text: String = (0..)
        .map(|at| 31 - at)
        .zip(LETTERS)
        .filter(|(bit, _)| is_set(*bit))
        .map(|(_, letter)| letter)
        .collect();
    if text.is_empty() {
        text.push('-');
    }
    text.extend((0..9).rev().zip("rwxrwxrwx".chars()).map(
        |(bit, letter)| {
            if is_set(bit) { letter } else { '-' }
        },
    ));
    text
}

pub(crate) fn is_folder(mode: u32) -> bool {
    mode & FOLDER != 0
}

pub(crate) fn is_link(mode: u32) -> bool {
    mode & LINK != 0
}

pub(crate) fn is_regular(mode: u32) -> bool {
    mode & TYPES == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_go_writes_them() {
        assert_eq!(text(FOLDER | 0o755), "drwxr-xr-x");
        assert_eq!(text(LINK | 0o777), "Lrwxrwxrwx");
        assert_eq!(text(0o640), "-rw-r-----");
        assert_eq!(text(1 << 26 | 1 << 21 | 0o620), "Dcrw--w----");
        assert_eq!(text(FOLDER | 1 << 20 | 0o777), "dtrwxrwxrwx");
        assert_eq!(text(1 << 23 | 0o4), "u------r--");
        assert!(is_regular(1 << 23 | 0o755) && !is_regular(LINK));
    }
}
