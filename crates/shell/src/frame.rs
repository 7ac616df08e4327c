//! Frames that the two ends send to each other.

use bytes::Bytes;
use selvage_api::selvage::shell::{Exit, Piece, WindowSize, piece::Kind};

use crate::{Error, Result, control::Control};

/// No message is larger: the original's client drops those that are.
pub const MAX_DATA: usize = 16 * 1024;

/// One frame of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Input of the command from the caller, or its output from the crm.
    Data(Bytes),
    /// Error output of the command, from the crm.
    Errors(Bytes),
    /// End of the command's input, from the caller.
    End,
    /// Size of the caller's terminal.
    Size { columns: u16, rows: u16 },
    /// Last message of the crm: exit code of the command, and the reason if it
    /// did not end by itself.
    Exit { code: i32, reason: String },
}

impl Frame {
    /// Converts to the message that a relay passes on.
    pub fn into_piece(self) -> Piece {
        let kind = match self {
            Self::Data(bytes) => Kind::Data(bytes.into()),
            Self::Errors(bytes) => Kind::Errors(bytes.into()),
            Self::End => Kind::End(true),
            Self::Size { columns, rows } => {
                Kind::Size(WindowSize { columns: columns.into(), rows: rows.into() })
            }
            Self::Exit { code, reason } => Kind::Exit(Exit { code, reason }),
        };
        Piece { kind: Some(kind) }
    }

    /// JSON of this frame for browsers; None for bytes, which are sent as they are.
    pub fn to_json(&self) -> Option<String> {
        let control = match self {
            Self::Data(_) | Self::Errors(_) => return None,
            Self::End => Control { end: true, ..Control::default() },
            Self::Size { columns, rows } => {
                Control { resize: Some([*columns, *rows]), ..Control::default() }
            }
            Self::Exit { code, reason } => {
                Control { exit: Some(*code), reason: reason.clone(), ..Control::default() }
            }
        };
        Some(control.text())
    }

    /// Parses the JSON of a browser: a size or an end.
    pub fn from_json(text: &str) -> Result<Self> {
        let control: Control =
            serde_json::from_str(text).map_err(|_| Error::Piece("text that is no JSON object"))?;
        match control {
            Control { resize: Some([columns, rows]), .. } => Ok(Self::Size { columns, rows }),
            Control { end: true, .. } => Ok(Self::End),
            _ => Err(Error::Piece("neither resize nor end")),
        }
    }

    /// Converts from the message that a relay passed on.
    pub fn from_piece(piece: Piece) -> Result<Self> {
        Ok(match piece.kind {
            None => return Err(Error::Piece("an empty piece")),
            Some(Kind::Open(_)) => return Err(Error::Piece("open, and not at the beginning")),
            Some(Kind::Data(bytes)) => Self::Data(bytes.into()),
            Some(Kind::Errors(bytes)) => Self::Errors(bytes.into()),
            Some(Kind::End(_)) => Self::End,
            Some(Kind::Size(size)) => {
                Self::Size { columns: clamped(size.columns), rows: clamped(size.rows) }
            }
            Some(Kind::Exit(exit)) => Self::Exit { code: exit.code, reason: exit.reason },
        })
    }
}

pub(crate) fn clamped(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_survive_a_relay() {
        for frame in [
            Frame::Data(Bytes::from_static(b"\x00\xff")),
            Frame::Errors(Bytes::from_static(b"no")),
            Frame::End,
            Frame::Size { columns: 132, rows: 50 },
            Frame::Exit { code: 137, reason: "killed".into() },
        ] {
            assert_eq!(Frame::from_piece(frame.clone().into_piece()).unwrap(), frame);
        }
    }

    #[test]
    fn browsers_speak_json() {
        let size = Frame::Size { columns: 80, rows: 24 };
        assert_eq!(size.to_json().unwrap(), r#"{"resize":[80,24]}"#);
        assert_eq!(Frame::from_json(r#"{"resize":[80,24]}"#).unwrap(), size);
        assert_eq!(Frame::from_json(r#"{"end":true}"#).unwrap(), Frame::End);
        let exit = Frame::Exit { code: 2, reason: "gone".into() };
        assert_eq!(exit.to_json().unwrap(), r#"{"exit":2,"reason":"gone"}"#);
        assert_eq!(Frame::Data(Bytes::new()).to_json(), None);
        for wrong in ["", "7", "{}", r#"{"exit":0}"#, r#"{"resize":[80]}"#] {
            assert!(Frame::from_json(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_does_not_belong_there_is_refused() {
        assert!(Frame::from_piece(Piece { kind: None }).is_err());
        let open = Piece { kind: Some(Kind::Open(Default::default())) };
        assert!(Frame::from_piece(open).is_err());
        let size = WindowSize { columns: 70_000, rows: 1 };
        let frame = Frame::from_piece(Piece { kind: Some(Kind::Size(size)) }).unwrap();
        assert_eq!(frame, Frame::Size { columns: u16::MAX, rows: 1 });
    }
}
