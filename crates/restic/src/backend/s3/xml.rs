//! The answers of an object store that are XML.

use quick_xml::{Reader, events::Event};

/// One page of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// Names and sizes.
    pub(super) objects: Vec<(String, u64)>,
    /// Token of the next page, if there is one.
    pub(super) next: Option<String>,
}

/// Failure as an object store describes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Failure {
    pub(in super::super) code: String,
    pub(in super::super) message: String,
}

/// Calls back with the path and the text of every element, and with the path
/// and nothing when one ends.
fn walk(text: &[u8], mut see: impl FnMut(&[String], Option<&str>)) -> Result<(), String> {
    let mut reader = Reader::from_reader(text);
    let mut path: Vec<String> = Vec::new();
    let mut content = String::new();
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        match reader.read_event_into(&mut buffer).map_err(|error| error.to_string())? {
            Event::Start(start) => {
                path.push(start.local_name().as_ref().to_owned());
                content.clear();
            }
            Event::Text(text) => content.push_str(&text.xml10_content()),
            Event::CData(text) => content.push_str(&text.xml10_content()),
            Event::GeneralRef(entity) => {
                let name = entity.xml10_content();
                content.push_str(&resolve(&name).ok_or("an entity is unknown")?);
            }
            Event::End(_) => {
                see(&path, Some(&content));
                see(&path, None);
                path.pop();
                content.clear();
            }
            Event::Eof if path.is_empty() => return Ok(()),
            Event::Eof => return Err("it ends too early".to_owned()),
            _ => {}
        }
    }
}

fn resolve(entity: &str) -> Option<String> {
    if let Some(number) = entity.strip_prefix('#') {
        let code = match number.strip_prefix('x') {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code).map(String::from);
    }
    quick_xml::escape::resolve_predefined_entity(entity).map(str::to_owned)
}

/// Reads a page of a list.
pub(super) fn page(text: &[u8]) -> Result<Page, String> {
    let mut page = Page::default();
    let (mut key, mut size) = (None, None);
    let (mut truncated, mut root, mut broken) = (false, false, false);
    walk(text, |path, content| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match (&path[..], content) {
            (["ListBucketResult"], _) => root = true,
            (["ListBucketResult", "Contents", "Key"], Some(text)) => key = Some(text.to_owned()),
            (["ListBucketResult", "Contents", "Size"], Some(text)) => size = text.parse().ok(),
            (["ListBucketResult", "Contents"], None) => match (key.take(), size.take()) {
                (Some(key), Some(size)) => page.objects.push((key, size)),
                _ => broken = true,
            },
            (["ListBucketResult", "IsTruncated"], Some(text)) => truncated = text == "true",
            (["ListBucketResult", "NextContinuationToken"], Some(text)) => {
                page.next = Some(text.to_owned());
            }
            _ => {}
        }
    })?;
    if !root || broken || (truncated && page.next.is_none()) {
        return Err("it is not a list of objects".to_owned());
    }
    if !truncated {
        page.next = None;
    }
    Ok(page)
}

/// Reads what is said about a failure; nothing if it cannot be read.
pub(in super::super) fn failure(text: &[u8]) -> Failure {
    let mut failure = Failure::default();
    let _ = walk(text, |path, content| {
        let last = path.last().map(String::as_str);
        match (last, content) {
            (Some("Code"), Some(text)) => failure.code = text.to_owned(),
            (Some("Message"), Some(text)) => failure.message = text.to_owned(),
            _ => {}
        }
    });
    failure
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_is_read() {
        let text = br#"<?xml version="1.0"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
              <IsTruncated>true</IsTruncated><Prefix>p</Prefix>
              <Contents><Key>a&amp;b&#x43;</Key><Size>7</Size><ETag>"x"</ETag></Contents>
              <Contents><Size>8</Size><Key>c</Key></Contents>
              <NextContinuationToken>more</NextContinuationToken>
            </ListBucketResult>"#;
        let expected = Page {
            objects: vec![("a&bC".to_owned(), 7), ("c".to_owned(), 8)],
            next: Some("more".to_owned()),
        };
        assert_eq!(page(text).unwrap(), expected);
    }

    #[test]
    fn what_is_no_page_is_refused() {
        for text in [
            "",
            "<html></html>",
            "<ListBucketResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        ] {
            assert!(page(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_failure_is_read_as_far_as_it_goes() {
        let text = b"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>";
        let expected = Failure { code: "NoSuchKey".to_owned(), message: "gone".to_owned() };
        assert_eq!(failure(text), expected);
        assert_eq!(failure(b"<html>oops"), Failure::default());
    }

    proptest! {
        #[test]
        fn nothing_makes_them_fall_over(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = page(&text);
            let _ = failure(&text);
        }
    }
}
