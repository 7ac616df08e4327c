//! `/proc/PID/stat`.

/// The flag of a task that belongs to the kernel itself.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Fields of one line of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat<'a> {
    pub pid: i32,
    /// Name of the command. May hold anything, closing parentheses included.
    pub comm: &'a [u8],
    /// The kernel's letter.
    pub state: u8,
    pub ppid: i32,
    pub flags: u32,
    /// CPU time in user mode, in ticks of a hundredth of a second.
    pub user: u64,
    /// CPU time in the kernel, in the same ticks.
    pub system: u64,
    pub threads: i32,
    /// Start of the process, in ticks since boot.
    pub started: u64,
    /// Virtual memory in bytes.
    pub virtual_memory: u64,
    /// Resident memory in pages.
    pub resident_pages: u64,
    /// Addresses of the program and its arguments. Other addresses mean another
    /// program; zeros to those who may not know.
    pub layout: [u64; 4],
}

impl Stat<'_> {
    /// Returns whether it is a thread of the kernel, without a program.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Returns whether it has ended and only its pid is left.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Reads a line of `/proc/PID/stat`. Fields that a kernel does not have yet
/// are 0.
pub fn stat(line: &[u8]) -> Option<Stat<'_>> {
    let open = line.iter().position(|&byte| byte == b'(')?;
    let close = line.iter().rposition(|&byte| byte == b')').filter(|&close| close > open)?;
    let pid = number(line[..open].trim_ascii())?;
    let mut fields = Fields(line.get(close + 1..)?);
    let &[state] = fields.next()? else { return None };
    let ppid = number(fields.next()?)?;
    // Group, session, terminal, its group.
    let flags = fields.after(4)?;
    // Page faults: minor, of children, major, of children.
    let user = fields.after(4)?;
    let system = fields.after(0)?;
    // Times of children, priority, nice.
    let threads = fields.after(4)?;
    let started = fields.after(1)?;
    let virtual_memory = fields.after(0)?;
    // Negative for a moment on some kernels.
    let resident_pages: i64 = fields.after(0)?;
    let start_code = fields.after(1).unwrap_or(0);
    let start_stack = fields.after(1).unwrap_or(0);
    // From the stack's start, field 28, to the arguments' start, field 48.
    let arguments_start = fields.after(19).unwrap_or(0);
    let arguments_end = fields.after(0).unwrap_or(0);
    Some(Stat {
        pid,
        comm: &line[open + 1..close],
        state,
        ppid,
        flags,
        user,
        system,
        threads,
        started,
        virtual_memory,
        resident_pages: resident_pages.max(0).unsigned_abs(),
        layout: [start_code, start_stack, arguments_start, arguments_end],
    })
}

/// Words of a line, blanks between them.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    /// The number after so many words that nobody needs.
    fn after<N: std::str::FromStr>(&mut self, skipped: usize) -> Option<N> {
        for _ in 0..skipped {
            self.next()?;
        }
        number(self.next()?)
    }
}

fn number<N: std::str::FromStr>(word: &[u8]) -> Option<N> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const GOLDEN: &[u8] = b"4242 (tmux: ) S x) S 1 4242 4242 0 -1 4194368 1063 12 3 4 250 150 \
        7 8 20 0 3 0 5555 8650752 901 18446744073709551615 94520 94600 140720 0 0 0 0 1 2 0 0 0 \
        17 1 0 0 0 0 0 94700 94800 94900 140721 140722 140723 140724 0\n";

    #[test]
    fn a_command_may_hold_what_looks_like_the_rest_of_the_line() {
        let read = stat(GOLDEN).unwrap();
        assert_eq!((read.pid, read.comm, read.state), (4242, &b"tmux: ) S x"[..], b'S'));
        assert_eq!((read.ppid, read.threads, read.started), (1, 3, 5555));
        assert_eq!((read.user, read.system), (250, 150));
        assert_eq!((read.virtual_memory, read.resident_pages), (8_650_752, 901));
        assert_eq!(read.layout, [94520, 140720, 140721, 140722]);
        assert!(!read.is_kernel_thread() && !read.is_dead());
    }

    #[test]
    fn kernel_threads_and_zombies_are_known() {
        let line = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 3 0 0 20 0 1 0 0 0 0 1\n";
        assert!(stat(line).unwrap().is_kernel_thread());
        let line = b"9 (gone) Z 1 9 9 0 -1 4228364 0 0 0 0 0 0 0 0 20 0 1 0 77 0 -3 1\n";
        let zombie = stat(line).unwrap();
        assert!(zombie.is_dead() && !zombie.is_kernel_thread());
        assert_eq!(zombie.resident_pages, 0);
    }

    #[test]
    fn half_a_line_is_nothing() {
        for end in 0..GOLDEN.len() - 1 {
            let cut = &GOLDEN[..end];
            if let Some(read) = stat(cut) {
                assert!(cut.len() > 90, "{} bytes gave {read:?}", cut.len());
            }
        }
        assert_eq!(stat(b""), None);
        assert_eq!(stat(b") ("), None);
        assert_eq!(stat(b"1 (a) SS 1"), None);
    }

    #[test]
    fn our_own_line_reads() {
        let line = std::fs::read("/proc/self/stat").unwrap();
        let read = stat(&line).unwrap();
        assert_eq!(read.pid.unsigned_abs(), std::process::id());
        assert!(read.virtual_memory > 0 && read.resident_pages > 0 && read.threads > 0);
        assert!(read.layout.iter().all(|&address| address != 0));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_stumble(line in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = stat(&line);
        }

        #[test]
        fn any_command_is_found(comm in proptest::collection::vec(any::<u8>(), 0..64)) {
            let line = [b"7 (", comm.as_slice(), b") R 1 0 0 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 3 4 5 6"].concat();
            let read = stat(&line).unwrap();
            prop_assert_eq!(read.comm, comm.as_slice());
            prop_assert_eq!((read.state, read.user, read.resident_pages), (b'R', 1, 5));
        }
    }
}
