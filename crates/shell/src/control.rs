//! Control messages beside the bytes, as JSON on a channel of their own. Bytes and
//! controls overtake each other, so a control that means "after the bytes"
//! says after how many.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Control {
    /// Columns and rows of the caller's terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resize: Option<[u16; 2]>,
    /// Exit code of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<i32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    /// The command shall find the end of what it reads.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) end: bool,
    /// Bytes of data and of errors that come before `exit` or `end`.
    #[serde(skip_serializing_if = "is_nothing")]
    pub(crate) after: [u64; 2],
    /// Bytes that have been taken by whom they are for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken: Option<u64>,
}

fn is_nothing(after: &[u64; 2]) -> bool {
    *after == [0, 0]
}

impl Control {
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn as_written_in_the_documentation() {
        let size = Control { resize: Some([80, 24]), ..Control::default() };
        assert_eq!(size.text(), r#"{"resize":[80,24]}"#);
        let exit = Control { exit: Some(3), after: [5, 0], ..Control::default() };
        assert_eq!(exit.text(), r#"{"exit":3,"after":[5,0]}"#);
        let read: Control = serde_json::from_str(r#"{"exit":0,"new":1}"#).unwrap();
        assert_eq!(read, Control { exit: Some(0), ..Control::default() });
    }
}
