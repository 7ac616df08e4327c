//! Texts of failures that fit into headers.
//!
//! Texts travel in headers and trailers, and clients that find those too large
//! (some take 8 KiB, of which a text may fill thrice its length) fail with that
//! in place of what they were told. Many a text holds the caller's own words.

use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode;
use tonic::{Code, Status};

const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The longest text that is sent as it is, in bytes.
const LONGEST: usize = 2048;

/// Number of characters shown of the end of a text that is too long.
const END: usize = 256;

/// Shortens the text in these headers or trailers, if there is one that is too
/// long.
pub(super) fn shorten(headers: &mut HeaderMap) {
    let Some(value) = headers.get(&MESSAGE).filter(|value| value.len() > LONGEST) else { return };
    let text = percent_decode(value.as_bytes()).decode_utf8_lossy();
    if text.len() <= LONGEST {
        return;
    }
    let mut brief = HeaderMap::new();
    // Only the text is taken: it is written there as gRPC wants it.
    let written = Status::new(Code::Unknown, shortened(&text)).add_header(&mut brief);
    match (written, brief.remove(&MESSAGE)) {
        (Ok(()), Some(brief)) => headers.insert(MESSAGE, brief),
        _ => headers.remove(&MESSAGE),
    };
}

/// The begin and the end, cut between characters.
fn shortened(text: &str) -> String {
    let whole = |at: &usize| text.is_char_boundary(*at);
    let begin = (0..=LONGEST - END).rev().find(whole).unwrap_or(0);
    let end = (text.len() - END..text.len()).find(whole).unwrap_or(text.len());
    format!("{}…{}", &text[..begin], &text[end..])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sent(text: &str) -> String {
        let mut headers = HeaderMap::new();
        Status::not_found(text).add_header(&mut headers).unwrap();
        shorten(&mut headers);
        assert!(headers[&MESSAGE].len() < 3 * (LONGEST + 4), "{}", headers[&MESSAGE].len());
        let status = Status::from_header_map(&headers).unwrap();
        assert_eq!(status.code(), Code::NotFound);
        status.message().to_owned()
    }

    #[test]
    fn only_what_is_too_long_is_shortened_and_between_characters() {
        // The characters are of one to four bytes, so that every cut is tried.
        for (character, most) in [("x", 1900), ("é", 950), ("…", 640), ("🦀", 480)] {
            let text = |count: usize| format!("container {:?} not found", character.repeat(count));
            assert_eq!(sent(&text(most)), text(most));
            for more in 0..8 {
                let long = sent(&text(250_000 + more));
                assert!(long.starts_with(&format!("container \"{character}")), "{long}");
                let cut = format!("{character}…{character}");
                assert!(long.contains(&cut), "{long}");
                assert!(long.ends_with(&format!("{character}\" not found")), "{long}");
                assert!(long.len() <= LONGEST + "…".len());
            }
        }
    }

    #[test]
    fn headers_without_a_text_stay() {
        let mut headers = HeaderMap::new();
        Status::ok("").add_header(&mut headers).unwrap();
        let before = headers.clone();
        shorten(&mut headers);
        assert_eq!(headers, before);
    }
}
