//! gRPC framing of notices with buffers that fit them: most streams are idle
//! most of the time and should cost little.

use bytes::Buf;
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::frame::Frame;

const BUFFER: usize = 1024;
/// Bytes that are encoded in one go. The buffer of the last go stays with the
/// stream.
const YIELD_AT: usize = 2 * 1024;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NoticeCodec;

impl Codec for NoticeCodec {
    type Encode = Frame;
    type Decode = Frame;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for NoticeCodec {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, frame: Frame, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        frame.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_AT)
    }
}

impl Decoder for NoticeCodec {
    type Item = Frame;
    type Error = Status;

    /// Bytes that are no notice become one that says nothing, which is
    /// counted; the next may be better.
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Frame>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(Frame::decode(bytes).unwrap_or_else(|_| Frame { action: -1, ..Frame::default() })))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_AT)
    }
}
