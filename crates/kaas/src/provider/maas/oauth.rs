//! OAuth 1.0 with the method PLAINTEXT, as MaaS wants it.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderValue;
use zeroize::Zeroizing;

/// RFC 3986: everything but letters, digits and `-._~` is encoded.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// An API key of MaaS.
pub(super) struct ApiKey {
    consumer: String,
    token: String,
    secret: Zeroizing<String>,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl ApiKey {
    /// Reads `consumer:token:secret`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [consumer, token, secret] = parts.as_slice() else { return None };
        let sound = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic());
        if !parts.iter().all(sound) {
            return None;
        }
        Some(Self {
            consumer: (*consumer).to_owned(),
            token: (*token).to_owned(),
            secret: Zeroizing::new((*secret).to_owned()),
        })
    }

    /// The header `Authorization` of one request. The secret of the consumer
    /// is empty, so that the signature begins with `&`.
    pub(super) fn header(&self, timestamp: i64, nonce: &str) -> Option<HeaderValue> {
        let encode = |text: &str| utf8_percent_encode(text, RESERVED).to_string();
        let signature = Zeroizing::new(encode(&format!("&{}", *self.secret)));
        let text = Zeroizing::new(format!(
            "OAuth realm=\"MAAS API\", oauth_consumer_key=\"{}\", oauth_token=\"{}\", \
             oauth_signature_method=\"PLAINTEXT\", oauth_signature=\"{}\", \
             oauth_timestamp=\"{timestamp}\", oauth_nonce=\"{nonce}\", oauth_version=\"1.0\"",
            encode(&self.consumer),
            encode(&self.token),
            *signature,
        ));
        let mut header = HeaderValue::from_str(&text).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_secret_is_the_signature_after_an_encoded_ampersand() {
        let key = ApiKey::parse("con:tok:se/cr+et\n").unwrap();
        let header = key.header(1_790_000_000, "00ff").unwrap();
        assert!(header.is_sensitive());
        assert_eq!(
            header.to_str().unwrap(),
            "OAuth realm=\"MAAS API\", oauth_consumer_key=\"con\", oauth_token=\"tok\", \
             oauth_signature_method=\"PLAINTEXT\", oauth_signature=\"%26se%2Fcr%2Bet\", \
             oauth_timestamp=\"1790000000\", oauth_nonce=\"00ff\", oauth_version=\"1.0\""
        );
        assert_eq!(format!("{key:?}"), "ApiKey(…)");
    }

    #[test]
    fn keys_have_three_parts() {
        for wrong in ["", "a:b", "a:b:", ":b:c", "a:b:c:d", "a:b:c d", "a b c"] {
            assert!(ApiKey::parse(wrong).is_none(), "{wrong:?}");
        }
    }
}
