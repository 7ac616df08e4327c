//! Downloads on behalf of users: manifests, configs and what remote generators
//! make.
//!
//! [`selvage_fetch`] judges the addresses that they may come from.

pub(crate) mod fetch;

pub(crate) use selvage_fetch::Failure;

/// One download that an App needs before it can be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) purpose: Purpose,
    pub(crate) url: String,
    /// JSON to be sent; without it nothing is sent.
    pub(crate) body: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Config,
    ConfigFile,
    Manifest,
    Generator,
}

/// A download that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) request: Request,
    pub(crate) outcome: Result<String, Failure>,
}

/// Returns true if a value of an App is to be fetched rather than taken as it
/// is.
pub(crate) fn is_address(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_is_fetched() {
        assert!(is_address("https://x") && !is_address("apiVersion: http://x"));
    }
}
