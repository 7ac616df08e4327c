//! Encoded messages read field by field, without building anything.

/// A value as it stands in the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

/// Reason why bytes are not a valid message.
pub(super) type Reason = &'static str;

/// The fields of an encoded message in order of appearance. Groups, which no
/// contract uses, are skipped.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const MAX_GROUP_DEPTH: usize = 100;

pub(super) fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Raw<'a>), Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            match self.field() {
                Ok(None) => {}
                Ok(Some(field)) => return Some(Ok(field)),
                Err(reason) => {
                    self.rest = &[];
                    return Some(Err(reason));
                }
            }
        }
        None
    }
}

impl<'a> Fields<'a> {
    /// The next field, `None` for a group.
    fn field(&mut self) -> Result<Option<(u32, Raw<'a>)>, Reason> {
        let (number, wire_type) = self.key()?;
        if wire_type == GROUP_START {
            self.skip_group(number)?;
            return Ok(None);
        }
        Ok(Some((number, self.value(wire_type)?)))
    }

    fn key(&mut self) -> Result<(u32, u8), Reason> {
        let key = u32::try_from(varint(&mut self.rest)?).map_err(|_| "field number too large")?;
        if key >> 3 == 0 {
            return Err("field number 0");
        }
        Ok((key >> 3, (key & 7) as u8))
    }

    fn value(&mut self, wire_type: u8) -> Result<Raw<'a>, Reason> {
        match wire_type {
            0 => varint(&mut self.rest).map(Raw::Varint),
            1 => self.array().map(|bytes| Raw::Fixed64(u64::from_le_bytes(bytes))),
            2 => {
                let length = varint(&mut self.rest)?;
                let length = usize::try_from(length).map_err(|_| "truncated")?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or("truncated")?;
                self.rest = rest;
                Ok(Raw::Bytes(bytes))
            }
            5 => self.array().map(|bytes| Raw::Fixed32(u32::from_le_bytes(bytes))),
            GROUP_END => Err("end of a group that was not started"),
            _ => Err("unknown wire type"),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or("truncated")?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn skip_group(&mut self, number: u32) -> Result<(), Reason> {
        let mut open = vec![number];
        while let Some(innermost) = open.last().copied() {
            match self.key()? {
                (number, GROUP_START) if open.len() < MAX_GROUP_DEPTH => open.push(number),
                (_, GROUP_START) => return Err("groups too deep"),
                (number, GROUP_END) if number == innermost => {
                    open.pop();
                }
                (_, GROUP_END) => return Err("end of another group"),
                (_, wire_type) => {
                    self.value(wire_type)?;
                }
            }
        }
        Ok(())
    }
}

/// Takes a varint off the front.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, Reason> {
    let mut value = 0u64;
    for shift in 0..10 {
        let (byte, rest) = bytes.split_first().ok_or("truncated")?;
        *bytes = rest;
        if shift == 9 && *byte > 1 {
            return Err("number too large");
        }
        value |= u64::from(byte & 0x7f) << (7 * shift);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("number too large")
}

/// Takes a fixed value off the front of a packed list.
pub(super) fn fixed<'a>(bytes: &mut &'a [u8], wide: bool) -> Result<Raw<'a>, Reason> {
    let mut fields = Fields { rest: bytes };
    let raw = fields.value(if wide { 1 } else { 5 })?;
    *bytes = fields.rest;
    Ok(raw)
}
