//! The frames of a client (RFC 9113, section 4): all pass as they are, but
//! headers, which are read and written anew.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::uri::Authority;

use super::hpack::{self, Decoder, put_literal};

/// Length of the preface, before a connection's first frame.
const PREFACE: usize = 24;

const HEAD: usize = 9;

/// The longest payload that may be sent to us: our listener asks for no more.
const MAX_PAYLOAD: usize = 16 * 1024;

/// The longest frame that has to be there as a whole.
pub(super) const MAX_FRAME: usize = HEAD + MAX_PAYLOAD;

/// The longest header, as it comes with all its frames, and decoded.
const MAX_BLOCK: usize = 64 * 1024;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Authority where the client has named nobody that can be.
const DEFAULT_AUTHORITY: &[u8] = b"localhost";

/// A client with which we cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("header frame is shorter than its padding or priority")]
    Short,
    #[error("header is interrupted by another frame")]
    Interrupted,
    #[error("header is longer than {MAX_BLOCK} bytes")]
    TooLong,
    #[error(transparent)]
    Block(#[from] hpack::Error),
}

/// State of the client's frames, as far as it matters for what comes next.
pub(super) struct Frames {
    decoder: Decoder,
    /// Number of the next bytes that pass unread.
    pass: usize,
    /// The header that has begun.
    open: Option<Header>,
}

struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// A header whose end has not been seen.
struct Header {
    stream: u32,
    flags: u8,
    priority: Bytes,
    block: BytesMut,
    /// Bytes that its frames have taken, so that empty ones count too.
    taken: usize,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { decoder: Decoder::new(), pass: PREFACE, open: None }
    }

    /// Moves what can be moved from input to output. Stops at [`MAX_FRAME`]
    /// of output, since headers may come out longer than they went in; then,
    /// and when a frame is not complete, there is input left.
    pub(super) fn advance(
        &mut self,
        input: &mut BytesMut,
        output: &mut BytesMut,
    ) -> Result<(), Error> {
        while output.len() < MAX_FRAME {
            let step = self.pass.min(input.len());
            output.extend_from_slice(&input[..step]);
            input.advance(step);
            self.pass -= step;
            let Some(head) = Head::parse(input) else { return Ok(()) };
            if !self.concerns_us(&head)? {
                self.pass = HEAD + head.length;
                continue;
            }
            if input.len() < HEAD + head.length {
                return Ok(());
            }
            let mut payload = input.split_to(HEAD + head.length);
            payload.advance(HEAD);
            self.header_frame(&head, payload, output)?;
        }
        Ok(())
    }

    /// Frames that are wrong by themselves pass: HTTP knows how to refuse
    /// them.
    fn concerns_us(&self, head: &Head) -> Result<bool, Error> {
        let fits = head.length <= MAX_PAYLOAD;
        match &self.open {
            None => Ok(fits && head.kind == HEADERS),
            Some(open) if fits && head.kind == CONTINUATION && head.stream == open.stream => {
                Ok(true)
            }
            Some(_) => Err(Error::Interrupted),
        }
    }

    fn header_frame(
        &mut self,
        head: &Head,
        payload: BytesMut,
        output: &mut BytesMut,
    ) -> Result<(), Error> {
        let mut header = match self.open.take() {
            None => Header::begin(head, payload)?,
            Some(mut open) => {
                open.block.unsplit(payload);
                open
            }
        };
        header.taken += HEAD + head.length;
        if header.taken > MAX_BLOCK {
            return Err(Error::TooLong);
        }
        if head.flags & END_HEADERS == 0 {
            self.open = Some(header);
            return Ok(());
        }
        let mut block = BytesMut::new();
        for field in self.decoder.decode(&header.block, MAX_BLOCK)? {
            let unusable = field.name == b":authority".as_slice()
                && Authority::try_from(field.value.as_ref()).is_err();
            let value = if unusable { DEFAULT_AUTHORITY } else { &field.value };
            put_literal(&field.name, value, &mut block);
        }
        header.put(&block, output);
        Ok(())
    }
}

impl Header {
    fn begin(head: &Head, mut payload: BytesMut) -> Result<Self, Error> {
        let mut padding = 0;
        if head.flags & PADDED != 0 {
            padding = usize::from(payload.try_get_u8().map_err(|_| Error::Short)?);
        }
        let mut priority = Bytes::new();
        if head.flags & PRIORITY != 0 {
            if payload.len() < 5 {
                return Err(Error::Short);
            }
            priority = payload.split_to(5).freeze();
        }
        payload.truncate(payload.len().checked_sub(padding).ok_or(Error::Short)?);
        let flags = head.flags & !(PADDED | END_HEADERS);
        Ok(Self { stream: head.stream, flags, priority, block: payload, taken: 0 })
    }

    /// Writes the header with another block, in as many frames as it takes.
    fn put(&self, block: &[u8], output: &mut BytesMut) {
        let (first, mut rest) = block.split_at(block.len().min(MAX_PAYLOAD - self.priority.len()));
        let end = |rest: &[u8]| if rest.is_empty() { END_HEADERS } else { 0 };
        let length = self.priority.len() + first.len();
        let flags = self.flags | end(rest);
        Head { length, kind: HEADERS, flags, stream: self.stream }.put(output);
        output.extend_from_slice(&self.priority);
        output.extend_from_slice(first);
        while !rest.is_empty() {
            let next;
            (next, rest) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            let (length, flags) = (next.len(), end(rest));
            Head { length, kind: CONTINUATION, flags, stream: self.stream }.put(output);
            output.extend_from_slice(next);
        }
    }
}

impl Head {
    fn parse(input: &[u8]) -> Option<Self> {
        let mut head = input.get(..HEAD)?;
        Some(Self {
            length: head.get_uint(3) as usize,
            kind: head.get_u8(),
            flags: head.get_u8(),
            // The highest bit has no meaning.
            stream: head.get_u32() & (u32::MAX >> 1),
        })
    }

    fn put(&self, output: &mut BytesMut) {
        output.put_uint(self.length as u64, 3);
        output.put_u8(self.kind);
        output.put_u8(self.flags);
        output.put_u32(self.stream);
    }
}
