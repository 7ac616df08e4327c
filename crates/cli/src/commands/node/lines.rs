//! Bytes of many machines in pieces, made whole lines again.

use std::collections::{BTreeMap, VecDeque};

/// A line without an end is given out in parts of this size.
const LONGEST: usize = 1 << 20;

/// Holds what each machine has begun and not yet ended.
#[derive(Debug, Default)]
pub(crate) struct Slicer {
    begun: BTreeMap<String, Vec<u8>>,
}

impl Slicer {
    /// The lines that this piece ends, without their ends.
    pub(crate) fn feed(&mut self, node: &str, piece: &[u8]) -> Vec<Vec<u8>> {
        let begun = self.begun.entry(node.to_owned()).or_default();
        let mut lines = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            begun.extend_from_slice(part);
            if begun.last() == Some(&b'\n') {
                begun.pop();
                lines.push(std::mem::take(begun));
            } else if begun.len() >= LONGEST {
                lines.push(std::mem::take(begun));
            }
        }
        lines
    }

    /// Returns lines that were begun and will not be ended.
    pub(crate) fn rest(&mut self) -> Vec<(String, Vec<u8>)> {
        let begun = std::mem::take(&mut self.begun);
        begun.into_iter().filter(|(_, line)| !line.is_empty()).collect()
    }
}

/// The last lines of each machine.
#[derive(Debug)]
pub(crate) struct Tail {
    most: usize,
    lines: BTreeMap<String, VecDeque<Vec<u8>>>,
}

impl Tail {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, lines: BTreeMap::new() }
    }

    pub(crate) fn push(&mut self, node: &str, line: Vec<u8>) {
        let lines = self.lines.entry(node.to_owned()).or_default();
        lines.push_back(line);
        if lines.len() > self.most {
            lines.pop_front();
        }
    }

    /// The lines, machine by machine.
    pub(crate) fn into_lines(self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let of_one = |(node, lines): (String, VecDeque<Vec<u8>>)| {
            lines.into_iter().map(move |line| (node.clone(), line))
        };
        self.lines.into_iter().flat_map(of_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_machines_do_not_mix() {
        let mut slicer = Slicer::default();
        assert!(slicer.feed("a", b"one, begu").is_empty());
        assert_eq!(slicer.feed("b", b"other\nnext"), [b"other".to_vec()]);
        assert_eq!(slicer.feed("a", b"n\n\ntwo\nthr"), [&b"one, begun"[..], b"", b"two"]);
        assert_eq!(
            slicer.rest(),
            [("a".to_owned(), b"thr".to_vec()), ("b".to_owned(), b"next".to_vec())]
        );
        assert!(slicer.rest().is_empty());
    }

    #[test]
    fn the_last_lines_of_each() {
        let mut tail = Tail::new(2);
        for (node, line) in [("b", "1"), ("a", "1"), ("b", "2"), ("b", "3")] {
            tail.push(node, line.into());
        }
        let lines: Vec<_> = tail
            .into_lines()
            .map(|(node, line)| format!("{node}{}", String::from_utf8_lossy(&line)))
            .collect();
        assert_eq!(lines, ["a1", "b2", "b3"]);
    }

    #[test]
    fn a_line_without_an_end_does_not_fill_the_memory() {
        let mut slicer = Slicer::default();
        let lines = slicer.feed("a", &vec![b'x'; LONGEST]);
        assert_eq!(lines.len(), 1);
        assert!(slicer.rest().is_empty());
    }
}
