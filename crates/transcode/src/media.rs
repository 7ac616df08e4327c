//! Content types and encodings of requests.

use http::{HeaderMap, HeaderValue, header};

use crate::Error;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The media type of a request without its parameters, in lower case. Several
/// values are one if they agree; a character set other than UTF-8 is none.
pub(crate) fn essence(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut found: Option<String> = None;
    for value in headers.get_all(header::CONTENT_TYPE) {
        let text = value.to_str().map_err(|_| "of unreadable bytes".to_owned())?;
        for one in text.split(',') {
            let mut parts = one.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let readable = parts.all(is_readable_parameter);
            if !readable || found.as_ref().is_some_and(|earlier| *earlier != media) {
                return Err(format!("{text:?}"));
            }
            found = Some(media);
        }
    }
    Ok(found)
}

fn is_readable_parameter(parameter: &str) -> bool {
    match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        _ => true,
    }
}

/// Refuses bodies of REST calls that call themselves something else than
/// JSON. Saying nothing is fine, and so is what curl says by itself: the
/// gateways of the originals took any type for JSON.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), Error> {
    let refused = |found| Error::ContentType { found, expected: "application/json" };
    match essence(headers).map_err(refused)? {
        None => Ok(()),
        Some(media) if is_json(&media) || is_said_unasked(&media) => Ok(()),
        Some(media) => Err(refused(format!("{media:?}"))),
    }
}

fn is_said_unasked(media: &str) -> bool {
    matches!(media, "application/x-www-form-urlencoded" | "text/plain")
}

fn is_json(media: &str) -> bool {
    media == "application/json"
        || (media.starts_with("application/")
            && media.ends_with("+json")
            && media != "application/connect+json")
}

/// Refuses compressed bodies: a few bytes could become any number of them.
pub(crate) fn require_identity(headers: &HeaderMap, name: &str) -> Result<(), Error> {
    for value in headers.get_all(name) {
        let text = value.to_str().unwrap_or("unreadable").trim();
        if !text.is_empty() && !text.eq_ignore_ascii_case("identity") {
            return Err(Error::ContentEncoding { found: text.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|v| (header::CONTENT_TYPE, HeaderValue::from_str(v).unwrap())).collect()
    }

    #[test]
    fn json_is_known_by_many_spellings() {
        for good in [
            &[][..],
            &["application/json"],
            &["Application/JSON; charset=utf-8"],
            &["application/json;charset=\"UTF-8\"; x=y"],
            &["application/json", "application/json; charset=utf8"],
            &["application/json, application/json"],
            &["application/merge-patch+json"],
            &["application/x-www-form-urlencoded"],
            &["text/plain"],
        ] {
            assert!(require_json(&headers(good)).is_ok(), "{good:?}");
        }
        for bad in [
            &["text/html"][..],
            &["multipart/form-data; boundary=x"],
            &["application/json; charset=latin1"],
            &["application/json", "text/plain"],
            &["application/connect+json"],
            &[""],
        ] {
            assert!(require_json(&headers(bad)).is_err(), "{bad:?}");
        }
    }
}
