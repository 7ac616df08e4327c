//! Signatures of requests: AWS's version 4.

use aws_lc_rs::hmac;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use crate::{Id, Secret};

/// Characters that stay as they are in a path or a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Signer of requests.
#[derive(Debug, Clone)]
pub(in super::super) struct Signer {
    pub(in super::super) access_key: String,
    pub(in super::super) secret_key: Secret,
    pub(in super::super) session_token: Option<Secret>,
    pub(in super::super) region: String,
}

/// Request that is to be signed.
#[derive(Debug)]
pub(in super::super) struct Unsigned<'a> {
    pub(in super::super) method: &'a str,
    pub(in super::super) host: &'a str,
    /// Encoded, with a slash in front.
    pub(in super::super) path: &'a str,
    /// Encoded and sorted.
    pub(in super::super) query: &'a str,
    /// The SHA-256 of the body.
    pub(in super::super) payload: &'a Id,
    pub(in super::super) time: Timestamp,
}

/// Encodes a path, slashes apart.
pub(in super::super) fn encode_path(path: &str) -> String {
    path.split('/')
        .map(|part| utf8_percent_encode(part, ENCODED).to_string())
        .collect::<Vec<_>>()
        .join("/")
}

/// Encodes and sorts a query.
pub(in super::super) fn encode_query(pairs: &[(&str, &str)]) -> String {
    let encode = |text| utf8_percent_encode(text, ENCODED).to_string();
    let mut parts: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    parts.sort();
    parts.join("&")
}

impl Signer {
    /// The headers that make a request a signed one.
    pub(in super::super) fn headers(&self, request: &Unsigned<'_>) -> Vec<(&'static str, String)> {
        let (day, time) = stamps(request.time);
        let payload = request.payload.to_string();
        let mut signed = vec![
            ("host", request.host.to_owned()),
            ("x-amz-content-sha256", payload.clone()),
            ("x-amz-date", time.clone()),
        ];
        if let Some(token) = &self.session_token {
            signed.push(("x-amz-security-token", token.expose().to_owned()));
        }
        let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines: String =
            signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let Unsigned { method, path, query, .. } = request;
        let canonical =
            Zeroizing::new(format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}"));
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", Id::of(canonical.as_bytes()));
        let signature = hex::encode(self.sign(&day, text.as_bytes()));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key
        );
        signed.remove(0);
        signed.push(("authorization", authorization));
        signed
    }

    fn sign(&self, day: &str, text: &[u8]) -> Vec<u8> {
        let secret = Zeroizing::new(format!("AWS4{}", self.secret_key.expose()));
        let mut key = Zeroizing::new(secret.as_bytes().to_vec());
        for part in [day, &self.region, "s3", "aws4_request"] {
            key = Zeroizing::new(mac(&key, part.as_bytes()));
        }
        mac(&key, text)
    }
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

/// The day and the time as signatures want them.
fn stamps(time: Timestamp) -> (String, String) {
    let time = time.strftime("%Y%m%dT%H%M%SZ").to_string();
    (time[..8].to_owned(), time)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    /// The examples of AWS's own documentation, list objects and get bucket
    /// lifecycle.
    #[test]
    fn signatures_are_those_of_the_documentation() {
        let signer = Signer {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            session_token: None,
            region: "us-east-1".to_owned(),
        };
        for (query, signature) in [
            (
                vec![("max-keys", "2"), ("prefix", "J")],
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
            (
                vec![("lifecycle", "")],
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
        ] {
            let headers = signer.headers(&Unsigned {
                method: "GET",
                host: "examplebucket.s3.amazonaws.com",
                path: "/",
                query: &encode_query(&query),
                payload: &Id::of(b""),
                time: "2013-05-24T00:00:00Z".parse().unwrap(),
            });
            let (_, authorization) = headers.iter().find(|(n, _)| *n == "authorization").unwrap();
            assert!(authorization.ends_with(signature), "{authorization}");
        }
    }

    #[test]
    fn odd_names_are_encoded() {
        assert_eq!(encode_path("/b/a b+ü/~x"), "/b/a%20b%2B%C3%BC/~x");
        assert_eq!(
            encode_query(&[("prefix", "a/b"), ("list-type", "2")]),
            "list-type=2&prefix=a%2Fb"
        );
    }
}
