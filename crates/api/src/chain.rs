//! Errors and their causes.

use std::error::Error;

/// Returns an error and its causes, from the outside in.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns the innermost cause of an error, which is the error itself if it has
/// none. Clients of HTTP and gRPC say why a connection failed only there.
pub fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

/// Returns the text of an error and of its causes, each once.
pub fn chain(error: &dyn Error) -> String {
    with_causes(error.to_string(), error.source())
}

/// Returns a text and those of the causes that it does not contain yet.
pub fn with_causes(mut text: String, cause: Option<&(dyn Error + 'static)>) -> String {
    for cause in cause.into_iter().flat_map(causes) {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Outer(&'static str, io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn causes_follow_the_error_and_are_not_repeated() {
        let refused = || io::Error::other("refused");
        assert_eq!(chain(&Outer("no connection", refused())), "no connection: refused");
        assert_eq!(chain(&Outer("connection refused", refused())), "connection refused");
        assert_eq!(chain(&refused()), "refused");
    }

    #[test]
    fn the_innermost_cause_is_the_last_one_or_the_error_itself() {
        let error = Outer("no connection", io::Error::other("refused"));
        assert_eq!(innermost(&error).to_string(), "refused");
        assert_eq!(innermost(&io::Error::other("refused")).to_string(), "refused");
        assert_eq!(causes(&error).count(), 2);
    }
}
