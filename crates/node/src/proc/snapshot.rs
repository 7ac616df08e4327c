//! Last reply about all processes, as it goes over the wire, so that what has
//! not changed is copied and not made again.

use std::time::Instant;

use bytes::Bytes;
use prost::encoding;
use selvage_api::os::ProcessInfo;

/// Number of `processes` in `os.Process`.
const PROCESSES: u32 = 2;

/// Processes by ascending pid. Their bytes together are a message
/// `os.Process`.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    rows: Vec<Row>,
    bytes: Bytes,
}

/// One process among those that were told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) pid: i32,
    pub(super) parent: i32,
    /// CPU time that it had used, in nanoseconds; `None` if it was running.
    pub(super) ran: Option<u64>,
    /// Time at which it is read again even if it does not run.
    pub(super) due: Instant,
    /// Bytes of its arguments.
    pub(super) arguments: usize,
    /// True if they are cut because those of all are too many.
    pub(super) cut: bool,
    end: usize,
}

impl Row {
    pub(super) fn new(process: &ProcessInfo, ran: Option<u64>, due: Instant, cut: bool) -> Self {
        let (pid, parent) = (process.pid, process.ppid);
        Self { pid, parent, ran, due, arguments: process.args.len(), cut, end: 0 }
    }
}

impl Snapshot {
    /// The message.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The processes one after the other, to be asked for by ascending pid.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { rows: &self.rows, bytes: &self.bytes, begin: 0 }
    }
}

#[derive(Debug)]
pub(super) struct Reader<'a> {
    /// Rows that were not passed yet.
    rows: &'a [Row],
    bytes: &'a [u8],
    /// Offset of the bytes of the first of them.
    begin: usize,
}

impl<'a> Reader<'a> {
    /// The process with this pid, which is larger than those asked for before.
    pub(super) fn find(&mut self, pid: i32) -> Option<(&'a Row, &'a [u8])> {
        while let [row, rest @ ..] = self.rows
            && row.pid <= pid
        {
            let bytes = self.bytes.get(self.begin..row.end);
            (self.rows, self.begin) = (rest, row.end);
            if row.pid == pid {
                return bytes.map(|bytes| (row, bytes));
            }
        }
        None
    }
}

/// A list in the making.
#[derive(Debug)]
pub(super) struct Writer {
    rows: Vec<Row>,
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates a writer for a list of about the size of this one.
    pub(super) fn like(before: &Snapshot, processes: usize) -> Self {
        let bytes = before.bytes.len() + before.bytes.len() / 8;
        Self { rows: Vec::with_capacity(processes), bytes: Vec::with_capacity(bytes) }
    }

    pub(super) fn keep(&mut self, row: &Row, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.rows.push(Row { end: self.bytes.len(), ..*row });
    }

    pub(super) fn push(&mut self, row: Row, process: &ProcessInfo) {
        encoding::message::encode(PROCESSES, process, &mut self.bytes);
        self.rows.push(Row { end: self.bytes.len(), ..row });
    }

    pub(super) fn finish(self) -> Snapshot {
        Snapshot { rows: self.rows, bytes: self.bytes.into() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prost::Message;
    use selvage_api::os::Process;

    use super::*;

    fn process(pid: i32) -> ProcessInfo {
        let args = "x".repeat(pid.unsigned_abs() as usize);
        ProcessInfo { pid, args, ..ProcessInfo::default() }
    }

    fn write(writer: &mut Writer, pid: i32) {
        let process = process(pid);
        writer.push(Row::new(&process, Some(1), Instant::now(), false), &process);
    }

    fn pids(snapshot: &Snapshot) -> Vec<i32> {
        let read = Process::decode(snapshot.bytes()).unwrap();
        assert!(read.processes.iter().all(|info| *info == process(info.pid)));
        read.processes.iter().map(|process| process.pid).collect()
    }

    #[test]
    fn what_is_kept_and_what_is_new_are_one_message() {
        let mut first = Writer::like(&Snapshot::default(), 3);
        [1, 300, 7000].into_iter().for_each(|pid| write(&mut first, pid));
        let first = first.finish();
        assert_eq!(pids(&first), [1, 300, 7000]);
        let mut second = Writer::like(&first, 3);
        let mut reader = first.reader();
        for pid in [1, 20, 7000, 9000] {
            match reader.find(pid) {
                Some((row, bytes)) => second.keep(row, bytes),
                None => write(&mut second, pid),
            }
        }
        let second = second.finish();
        assert_eq!(pids(&second), [1, 20, 7000, 9000]);
        assert_eq!(second.reader().find(7000).unwrap().0.arguments, 7000);
        assert!(second.reader().find(300).is_none());
        assert!(Snapshot::default().reader().find(1).is_none());
    }
}
