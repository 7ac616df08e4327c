//! Labels of machines, and how machines are chosen by them.

use std::collections::BTreeMap;

/// Labels of a machine.
pub type Labels = BTreeMap<String, String>;

const MOST: usize = 64;
const LONGEST: usize = 63;

/// Labels or a selector that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("at most {MOST} labels")]
    TooMany,
    #[error(
        "label {0:?}: keys and values have at most {LONGEST} letters, digits and any of . _ - / ; \
         keys at least one"
    )]
    Label(String),
    #[error("selector {0:?}: not of the form key=value or key!=value, several with commas")]
    Selector(String),
}

impl Error {
    pub fn code(&self) -> selvage_api::Code {
        selvage_api::Code::InvalidArgument
    }
}

/// Checks what a machine says of itself.
pub fn check<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<(), Error> {
    for (index, (key, value)) in labels.into_iter().enumerate() {
        if index >= MOST {
            return Err(Error::TooMany);
        }
        if key.is_empty() || !is_word(key) || !is_word(value) {
            return Err(Error::Label(format!("{key}={value}")));
        }
    }
    Ok(())
}

fn is_word(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    text.len() <= LONGEST && text.bytes().all(allowed)
}

/// Labels that a machine must and must not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    value: String,
    wanted: bool,
}

impl Selector {
    /// Reads `rack=3,role!=spare`. In headers, where commas part machines,
    /// the requirements are parted by `&`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Selector(text.to_owned());
        let requirement = |part: &str| {
            let (key, value) = part.trim().split_once('=')?;
            let (key, wanted) = match key.strip_suffix('!') {
                Some(key) => (key, false),
                None => (key, true),
            };
            let sound = !key.is_empty() && is_word(key) && is_word(value);
            sound.then(|| Requirement { key: key.into(), value: value.into(), wanted })
        };
        let parts = text.split([',', '&']).map(requirement);
        parts.collect::<Option<_>>().map(Self).ok_or_else(wrong)
    }

    /// Returns whether the text can only be a selector, never a machine's name.
    pub fn is_one(text: &str) -> bool {
        text.contains('=')
    }

    /// Returns whether a machine with these labels is meant.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|asked| {
            let same = labels.get(&asked.key).is_some_and(|value| *value == asked.value);
            same == asked.wanted
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn all_requirements_must_hold() {
        let machine = labels(&[("rack", "3"), ("role", "worker")]);
        for (text, fits) in [
            ("rack=3", true),
            ("rack=3,role=worker", true),
            ("rack=3&role=worker", true),
            ("rack=4", false),
            ("rack=3,role=spare", false),
            ("rack!=4", true),
            ("rack!=3", false),
            ("zone!=a", true),
            ("zone=", false),
        ] {
            assert_eq!(Selector::parse(text).unwrap().matches(&machine), fits, "{text}");
        }
        for wrong in ["", "rack", "=3", "!=3", "a=b,", "a b=c", "a==b", "a=b=c"] {
            assert!(Selector::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn labels_are_short_words() {
        check(&labels(&[("example.org/rack", "a_b-c.d"), ("empty", "")])).unwrap();
        for (key, value) in [("", "a"), ("a b", "c"), ("a", "b\n"), ("a=b", "c")] {
            let refused = check(&labels(&[(key, value)])).unwrap_err();
            assert!(refused.to_string().starts_with("label "), "{refused}");
        }
        assert!(check(&labels(&[("a", &"x".repeat(64))])).is_err());
        let many: Labels = (0..65).map(|n| (format!("k{n}"), String::new())).collect();
        assert_eq!(check(&many), Err(Error::TooMany));
    }
}
