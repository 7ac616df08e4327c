//! What the two ends say to each other.

use bytes::Bytes;
use selvage_api::selvage::shell::{Exit, Piece, WindowSize, piece::Kind};

use crate::{Error, Result, control::Control};

/// No message is larger: the original's client drops those that are.
pub const MAX_DATA: usize = 16 * 1024;

/// A word of the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// From the caller: what the command reads. From the crm: what it writes.
    Data(Bytes),
    /// From the crm: what the command writes as errors.
    Errors(Bytes),
    /// From the caller: there is nothing more to read.
    End,
    /// From the caller: how large its terminal is.
    Size { columns: u16, rows: u16 },
    /// From the crm, last: how the command ended, and why if not by itself.
    Exit { code: i32, reason: String },
}

impl Word {
    /// What a relay passes on.
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

    /// As JSON, for browsers; bytes have none.
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

    /// What a browser says as JSON: a size or an end.
    pub fn from_json(text: &str) -> Result<Self> {
        let control: Control =
            serde_json::from_str(text).map_err(|_| Error::Piece("text that is no JSON object"))?;
        match control {
            Control { resize: Some([columns, rows]), .. } => Ok(Self::Size { columns, rows }),
            Control { end: true, .. } => Ok(Self::End),
            _ => Err(Error::Piece("neither resize nor end")),
        }
    }

    /// What a relay passed on.
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
    fn words_survive_a_relay() {
        for word in [
            Word::Data(Bytes::from_static(b"\x00\xff")),
            Word::Errors(Bytes::from_static(b"no")),
            Word::End,
            Word::Size { columns: 132, rows: 50 },
            Word::Exit { code: 137, reason: "killed".into() },
        ] {
            assert_eq!(Word::from_piece(word.clone().into_piece()).unwrap(), word);
        }
    }

    #[test]
    fn browsers_speak_json() {
        let size = Word::Size { columns: 80, rows: 24 };
        assert_eq!(size.to_json().unwrap(), r#"{"resize":[80,24]}"#);
        assert_eq!(Word::from_json(r#"{"resize":[80,24]}"#).unwrap(), size);
        assert_eq!(Word::from_json(r#"{"end":true}"#).unwrap(), Word::End);
        let exit = Word::Exit { code: 2, reason: "gone".into() };
        assert_eq!(exit.to_json().unwrap(), r#"{"exit":2,"reason":"gone"}"#);
        assert_eq!(Word::Data(Bytes::new()).to_json(), None);
        for wrong in ["", "7", "{}", r#"{"exit":0}"#, r#"{"resize":[80]}"#] {
            assert!(Word::from_json(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_does_not_belong_there_is_refused() {
        assert!(Word::from_piece(Piece { kind: None }).is_err());
        let open = Piece { kind: Some(Kind::Open(Default::default())) };
        assert!(Word::from_piece(open).is_err());
        let size = WindowSize { columns: 70_000, rows: 1 };
        let word = Word::from_piece(Piece { kind: Some(Kind::Size(size)) }).unwrap();
        assert_eq!(word, Word::Size { columns: u16::MAX, rows: 1 });
    }
}
