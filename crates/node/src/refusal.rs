//! What a caller is told who is refused.

use std::fmt::Display;

use selvage_api::Code;
use tonic::Status;

/// Texts travel in headers, and clients that find those too large (8 KiB, of
/// which a text may take thrice its length) say that in place of the text.
const LONGEST: usize = 2048;

/// How much of a text that is too long is shown of its end.
const END: usize = 256;

/// The status with this text, shortened where the caller's own words in it are
/// too many.
pub(crate) fn refusal(code: Code, text: impl Display) -> Status {
    Status::new(code.grpc(), shortened(text.to_string()))
}

fn shortened(text: String) -> String {
    if text.len() <= LONGEST {
        return text;
    }
    let whole = |at: &usize| text.is_char_boundary(*at);
    let begin = (0..=LONGEST - END).rev().find(whole).unwrap_or(0);
    let end = (text.len() - END..text.len()).find(whole).unwrap_or(text.len());
    format!("{}…{}", &text[..begin], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_long_is_shortened() {
        let text = |length: usize| format!("container {:?} not found", "é".repeat(length));
        assert_eq!(refusal(Code::NotFound, text(900)).message(), text(900));
        let long = refusal(Code::NotFound, text(50_000));
        assert!(long.message().starts_with("container \"éé"), "{long}");
        assert!(long.message().contains("é…é"), "{long}");
        assert!(long.message().ends_with("éé\" not found"), "{long}");
        assert!(long.message().len() <= LONGEST + "…".len());
    }
}
