//! One hour by the second in little memory: what changed since the second
//! before, and no more, in blocks of which the oldest is dropped.

use std::collections::VecDeque;

/// Time for which points are kept.
pub const WINDOW_MS: i64 = 3_600_000;

/// Expected interval between two points.
const STEP_MS: i64 = 1000;

/// Points in a block. Each begins with whole numbers, so that the oldest can
/// go without the rest.
const BLOCK: u16 = 120;

/// Numbers of a point.
const VALUES: usize = 6;

/// Counters of one object at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Point {
    /// Time of the point, in milliseconds since 1970.
    pub time: i64,
    pub cpu_ns: u64,
    pub memory: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

impl Point {
    fn values(&self) -> [u64; VALUES] {
        [
            self.cpu_ns,
            self.memory,
            self.read_bytes,
            self.written_bytes,
            self.received_bytes,
            self.sent_bytes,
        ]
    }

    fn from_values(time: i64, values: [u64; VALUES]) -> Self {
        let [cpu_ns, memory, read_bytes, written_bytes, received_bytes, sent_bytes] = values;
        Self { time, cpu_ns, memory, read_bytes, written_bytes, received_bytes, sent_bytes }
    }
}

#[derive(Debug)]
struct Block {
    first: Point,
    last_time: i64,
    points: u16,
    /// Points after the first: a byte that says which values changed, the
    /// deviation from the expected time, the changes.
    bytes: Vec<u8>,
}

/// The last hour of one series.
#[derive(Debug, Default)]
pub struct History {
    blocks: VecDeque<Block>,
    last: Option<Point>,
}

impl History {
    /// Adds a point. One that is not later than the last is left out.
    pub fn push(&mut self, point: Point) {
        if self.last.is_some_and(|last| point.time <= last.time) {
            return;
        }
        match (self.blocks.back_mut(), self.last) {
            (Some(block), Some(last)) if block.points < BLOCK => {
                encode(&mut block.bytes, &last, &point);
                block.points += 1;
                block.last_time = point.time;
            }
            (block, _) => {
                if let Some(full) = block {
                    full.bytes.shrink_to_fit();
                }
                self.blocks.push_back(Block {
                    first: point,
                    last_time: point.time,
                    points: 1,
                    bytes: Vec::new(),
                });
            }
        }
        self.last = Some(point);
        while self.blocks.front().is_some_and(|block| block.last_time < point.time - WINDOW_MS) {
            self.blocks.pop_front();
        }
    }

    /// Points at or after that time, oldest first; of each step in
    /// milliseconds the last.
    pub fn points(&self, since: i64, step: i64) -> Vec<Point> {
        let step = step.max(1);
        let mut points: Vec<Point> = Vec::new();
        for block in self.blocks.iter().filter(|block| block.last_time >= since) {
            let mut point = block.first;
            let mut rest = block.bytes.as_slice();
            loop {
                if point.time >= since {
                    match points.last_mut() {
                        Some(last) if last.time.div_euclid(step) == point.time.div_euclid(step) => {
                            *last = point;
                        }
                        _ => points.push(point),
                    }
                }
                match decode(&mut rest, &point) {
                    Some(next) => point = next,
                    None => break,
                }
            }
        }
        points
    }

    /// Memory that it takes, in bytes.
    pub fn size(&self) -> usize {
        let blocks = self.blocks.capacity() * size_of::<Block>();
        blocks + self.blocks.iter().map(|block| block.bytes.capacity()).sum::<usize>()
    }
}

fn encode(bytes: &mut Vec<u8>, last: &Point, point: &Point) {
    let changes: [u64; VALUES] = std::array::from_fn(|at| {
        // A counter that began anew goes backwards.
        zigzag(point.values()[at].wrapping_sub(last.values()[at]).cast_signed())
    });
    let mask = changes.iter().rev().fold(0_u8, |mask, change| mask << 1 | u8::from(*change != 0));
    bytes.push(mask);
    varint(bytes, zigzag(point.time - last.time - STEP_MS));
    for change in changes.into_iter().filter(|change| *change != 0) {
        varint(bytes, change);
    }
}

fn decode(rest: &mut &[u8], last: &Point) -> Option<Point> {
    let (&mask, after) = rest.split_first()?;
    *rest = after;
    let time = last.time.wrapping_add(STEP_MS).wrapping_add(unzigzag(read_varint(rest)?));
    let mut values = last.values();
    for (at, value) in values.iter_mut().enumerate() {
        if mask & 1 << at != 0 {
            *value = value.wrapping_add_signed(unzigzag(read_varint(rest)?));
        }
    }
    Some(Point::from_values(time, values))
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(points: i64, of: impl Fn(i64) -> Point) -> History {
        let mut history = History::default();
        for second in 0..points {
            history.push(Point { time: second * 1000, ..of(second) });
        }
        history
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let history = filled(10_000, |second| Point {
            cpu_ns: second.unsigned_abs() * 7_000_000,
            ..Point::default()
        });
        let points = history.points(i64::MIN, 1);
        assert!((3600..=3600 + usize::from(BLOCK) + 1).contains(&points.len()), "{}", points.len());
        let last = points.last().copied();
        assert_eq!(
            last,
            Some(Point { time: 9_999_000, cpu_ns: 9_999 * 7_000_000, ..Point::default() })
        );
        assert_eq!(history.points(9_000_000, 1).len(), 1000);
    }

    #[test]
    fn the_worst_hour_stays_far_below_a_mebibyte() {
        let wild = |second: i64| {
            let value = if second % 2 == 0 { u64::MAX / 3 } else { 5 };
            Point::from_values(0, [value; VALUES])
        };
        assert!(filled(8000, wild).size() < 300 << 10);
    }

    #[test]
    fn an_idle_hour_is_next_to_nothing() {
        let idle = |_| Point { memory: 675_840, ..Point::default() };
        assert!(filled(8000, idle).size() < 12 << 10);
    }

    #[test]
    fn a_step_gives_its_last_point() {
        let history =
            filled(60, |second| Point { memory: second.unsigned_abs(), ..Point::default() });
        let points: Vec<u64> = history.points(0, 10_000).iter().map(|point| point.memory).collect();
        assert_eq!(points, [9, 19, 29, 39, 49, 59]);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            points in proptest::collection::vec((1_i64..5000, any::<[u64; VALUES]>()), 1..500),
        ) {
            let mut history = History::default();
            let mut time = 1_794_773_095_000;
            let mut expected = Vec::new();
            for (later, values) in points {
                time += later;
                let point = Point::from_values(time, values);
                history.push(point);
                history.push(Point { time, ..Point::default() });
                expected.push(point);
            }
            prop_assert_eq!(history.points(0, 1), expected);
        }

        #[test]
        fn no_bytes_make_it_stumble(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut rest = bytes.as_slice();
            let mut point = Point::default();
            while let Some(next) = decode(&mut rest, &point) {
                point = next;
                point.time %= WINDOW_MS;
            }
        }
    }
}
