//! Address of a server.

use std::{fmt, path::PathBuf};

use url::{Host, Url};

use crate::Error;

/// An address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// TLS over TCP.
    Https { host: String, port: u16 },
    /// Plain text over TCP, as `--insecure` serves.
    Http { host: String, port: u16 },
    /// A unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Reads `https://host:port`, `http://host:port`, `unix:///path`, or
    /// `host:port`, which means https.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Invalid {
            message: format!("endpoint {text:?}: {why}"),
            hints: vec!["write it as https://host:port, http://host:port or unix:///path".into()],
        };
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') && path.len() > 1 {
                Ok(Self::Unix(path.into()))
            } else {
                Err(wrong("the path of the socket must be absolute"))
            };
        }
        let full = if text.contains("://") { text.into() } else { format!("https://{text}") };
        let url = Url::parse(&full).map_err(|error| wrong(&error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("names and passwords do not belong here"));
        }
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("nothing may follow the port"));
        }
        let host = url.host_str().ok_or_else(|| wrong("there is no host"))?.to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        match url.scheme() {
            "https" => Ok(Self::Https { host, port }),
            "http" => Ok(Self::Http { host, port }),
            other => Err(wrong(&format!("{other} is not a way to reach a server"))),
        }
    }

    /// Returns whether what is sent cannot be read on the way.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            Self::Https { .. } | Self::Unix(_) => true,
            Self::Http { .. } => self.is_loopback(),
        }
    }

    /// Returns whether only this machine can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Https { host, .. } | Self::Http { host, .. } => match Host::parse(host) {
                Ok(Host::Ipv4(ip)) => ip.is_loopback(),
                Ok(Host::Ipv6(ip)) => ip.is_loopback(),
                Ok(Host::Domain(name)) => name == "localhost",
                Err(_) => false,
            },
        }
    }

    /// A name for a context that leads here.
    pub(crate) fn nickname(&self) -> String {
        match self {
            Self::Https { host, port } | Self::Http { host, port } => {
                format!("{}-{port}", host.trim_matches(['[', ']']).replace(':', "-"))
            }
            Self::Unix(path) => {
                path.file_stem().map_or("socket".into(), |stem| stem.to_string_lossy().into_owned())
            }
        }
    }

    /// Returns `:scheme` and `:authority`.
    pub(crate) fn origin(&self) -> String {
        match self {
            Self::Unix(_) => "http://localhost".into(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Https { host, port } => write!(f, "https://{host}:{port}"),
            Self::Http { host, port } => write!(f, "http://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_have_one_spelling() {
        for (text, one) in [
            ("https://Example.org", "https://example.org:443"),
            ("example.org:8443", "https://example.org:8443"),
            ("http://127.0.0.1:80/", "http://127.0.0.1:80"),
            ("https://[::1]:9", "https://[::1]:9"),
            ("unix:///run/selvage.sock", "unix:///run/selvage.sock"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), one);
        }
        for text in
            ["", "ftp://a", "https://a/b", "https://u:p@a", "unix://a", "unix:///", "https://a?b"]
        {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn who_can_listen() {
        let private = |text| Endpoint::parse(text).unwrap().is_private();
        assert!(private("http://localhost:1") && private("http://[::1]:1") && private("https://a"));
        assert!(!private("http://10.0.0.1:1") && !private("http://localhost.example.org:1"));
    }
}
