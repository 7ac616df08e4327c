//! The Huffman code of HTTP/2 header strings (RFC 7541, appendix B), reading
//! only.

/// Bits of the code of each byte. The code is canonical: codes of one length
/// are consecutive, in the order of the bytes, and begin where those of the
/// length before end. So the lengths say it all.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Bits of the longest codes, and of the end-of-string mark. The mark is the
/// only word of that length that stands for no byte, and never sent.
const LONGEST: usize = 30;

static CODE: Code = Code::from_lengths();

/// The codes of one length.
#[derive(Clone, Copy)]
struct Row {
    first: u32,
    count: u32,
    /// Start of the bytes of this length among `Code::bytes`.
    start: usize,
}

struct Code {
    rows: [Row; LONGEST + 1],
    /// All bytes, in the order of their codes.
    bytes: [u8; 256],
}

impl Code {
    const fn from_lengths() -> Self {
        let mut rows = [Row { first: 0, count: 0, start: 0 }; LONGEST + 1];
        let mut bytes = [0; 256];
        let (mut next_code, mut placed, mut length) = (0, 0, 1);
        while length <= LONGEST {
            next_code <<= 1;
            rows[length] = Row { first: next_code, count: 0, start: placed };
            let mut byte = 0;
            while byte < LENGTHS.len() {
                if LENGTHS[byte] as usize == length {
                    bytes[placed] = byte as u8;
                    placed += 1;
                    next_code += 1;
                    rows[length].count += 1;
                }
                byte += 1;
            }
            length += 1;
        }
        Self { rows, bytes }
    }

    fn byte(&self, code: u32, length: usize) -> Option<u8> {
        let row = self.rows.get(length)?;
        let nth = code.checked_sub(row.first).filter(|nth| *nth < row.count)?;
        self.bytes.get(row.start + nth as usize).copied()
    }
}

/// The string that was encoded, if it was.
pub(super) fn decode(input: &[u8]) -> Option<Vec<u8>> {
    let mut output = Vec::with_capacity(input.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0);
    for byte in input {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            length += 1;
            if let Some(byte) = CODE.byte(code, length) {
                output.push(byte);
                (code, length) = (0, 0);
            } else if length == LONGEST {
                return None;
            }
        }
    }
    // The last byte is filled up with ones, and no more than that.
    let filling = length < 8 && code == (1 << length) - 1;
    filling.then_some(output)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The code of a byte, with its length.
    fn code_of(byte: u8) -> (u32, usize) {
        let length = usize::from(LENGTHS[usize::from(byte)]);
        let row = CODE.rows[length];
        let nth = (0..row.count).find(|nth| CODE.byte(row.first + nth, length) == Some(byte));
        (row.first + nth.unwrap(), length)
    }

    #[test]
    fn codes_are_those_of_the_standard() {
        for (byte, code, length) in [
            (b'0', 0x0, 5),
            (b't', 0x9, 5),
            (b' ', 0x14, 6),
            (b'/', 0x18, 6),
            (b':', 0x5c, 7),
            (b'Z', 0xfd, 8),
            (b'?', 0x3fc, 10),
            (b'\'', 0x7fa, 11),
            (0, 0x1ff8, 13),
            (b'{', 0x7ffe, 15),
            (b'\\', 0x7fff0, 19),
            (128, 0xf_ffe6, 20),
            (255, 0x3ff_ffee, 26),
            (249, 0xfff_fffe, 28),
            (b'\n', 0x3fff_fffc, 30),
            (22, 0x3fff_fffe, 30),
        ] {
            assert_eq!(code_of(byte), (code, length), "{byte}");
        }
    }

    #[test]
    fn every_byte_has_a_code_and_one_word_is_left_for_the_end() {
        let taken: u64 = LENGTHS.iter().map(|length| 1 << (LONGEST - usize::from(*length))).sum();
        assert_eq!(taken, (1 << LONGEST) - 1);
    }

    #[test]
    fn every_byte_reads_back() {
        for byte in 0..=u8::MAX {
            let (code, length) = code_of(byte);
            let filled = u64::from(code) << (64 - length) | (u64::MAX >> length);
            let encoded = &filled.to_be_bytes()[..length.div_ceil(8)];
            assert_eq!(decode(encoded), Some(vec![byte]));
        }
    }

    #[test]
    fn filling_is_checked() {
        assert_eq!(decode(&[0x3f]).as_deref(), Some(b"o".as_slice()));
        assert_eq!(decode(&[0x3e]), None, "zeros");
        assert_eq!(decode(&[0x3f, 0xff]), None, "a byte too many");
        assert_eq!(decode(&[0xff; 4]), None, "end of string");
        assert_eq!(decode(&[]).as_deref(), Some([].as_slice()));
    }
}
