//! Header blocks (RFC 7541): reading them as the client meant them, and
//! writing them so that the reader need not remember anything.

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    huffman,
    table::{Field, MAX_SIZE, Table},
};

/// A header block that cannot be read.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(test, derive(PartialEq))]
pub(super) enum Error {
    #[error("header block ends within a field")]
    Truncated,
    #[error("header block has a number out of range")]
    Integer,
    #[error("header block names a field that there is not")]
    Index,
    #[error("header block has a string that is not Huffman code")]
    Huffman,
    #[error("header block resizes the table where or as it may not")]
    Resize,
    #[error("header list is longer than {0} bytes")]
    TooLong(usize),
}

/// Reads the header blocks of one connection, all of them and in order.
pub(super) struct Decoder {
    table: Table,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { table: Table::new() }
    }

    /// The fields of a block. A few bytes can stand for many, hence the limit
    /// on their size together.
    pub(super) fn decode(&mut self, block: &[u8], limit: usize) -> Result<Vec<Field>, Error> {
        let mut input = Input(block);
        let mut fields = Vec::new();
        let mut size = 0;
        while let Some(first) = input.0.first() {
            let field = match first.leading_zeros() {
                0 => self.indexed(input.integer(7)?)?,
                1 => {
                    let field = self.literal(&mut input, 6)?;
                    self.table.learn(field.clone());
                    field
                }
                2 => {
                    let room = input.integer(5)?;
                    if !fields.is_empty() || room > MAX_SIZE {
                        return Err(Error::Resize);
                    }
                    self.table.resize(room);
                    continue;
                }
                _ => self.literal(&mut input, 4)?,
            };
            size += field.size();
            if size > limit {
                return Err(Error::TooLong(limit));
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn indexed(&self, index: usize) -> Result<Field, Error> {
        self.table.get(index).ok_or(Error::Index)
    }

    fn literal(&self, input: &mut Input<'_>, prefix: u32) -> Result<Field, Error> {
        let name = match input.integer(prefix)? {
            0 => input.string()?,
            index => self.indexed(index)?.name,
        };
        Ok(Field { name, value: input.string()? })
    }
}

/// The part of a block that is not read yet.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Result<u8, Error> {
        let (first, rest) = self.0.split_first().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(*first)
    }

    /// A number that begins in the lower bits of a byte. Four more bytes are
    /// enough for any that makes sense.
    fn integer(&mut self, prefix: u32) -> Result<usize, Error> {
        let mask = (1_usize << prefix) - 1;
        let mut value = usize::from(self.byte()?) & mask;
        if value < mask {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Integer)
    }

    fn string(&mut self) -> Result<Bytes, Error> {
        let huffman = self.0.first().is_some_and(|first| first & 0x80 != 0);
        let length = self.integer(7)?;
        let (string, rest) = self.0.split_at_checked(length).ok_or(Error::Truncated)?;
        self.0 = rest;
        if huffman {
            huffman::decode(string).map(Bytes::from).ok_or(Error::Huffman)
        } else {
            Ok(Bytes::copy_from_slice(string))
        }
    }
}

/// Writes a field in full, as one that is not to be learnt. Never longer than
/// the field's size.
pub(super) fn put_literal(name: &[u8], value: &[u8], output: &mut BytesMut) {
    output.put_u8(0);
    put_string(name, output);
    put_string(value, output);
}

fn put_string(string: &[u8], output: &mut BytesMut) {
    const PREFIX: usize = 0x7f;
    match string.len().checked_sub(PREFIX) {
        None => output.put_u8(string.len() as u8),
        Some(mut rest) => {
            output.put_u8(PREFIX as u8);
            while rest >= 0x80 {
                output.put_u8(0x80 | (rest & 0x7f) as u8);
                rest >>= 7;
            }
            output.put_u8(rest as u8);
        }
    }
    output.extend_from_slice(string);
}

#[cfg(test)]
mod tests;
