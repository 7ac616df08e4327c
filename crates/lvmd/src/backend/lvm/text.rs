//! The text format of LVM's metadata: sections, values, lists, comments.

use std::collections::BTreeMap;

/// A section: values and further sections by name.
pub(super) type Section = BTreeMap<String, Node>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Number(i64),
    Text(String),
    List(Vec<Node>),
    Section(Section),
}

impl Node {
    pub(super) fn number(&self) -> Option<u64> {
        if let Self::Number(number) = self { u64::try_from(*number).ok() } else { None }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn list(&self) -> &[Node] {
        if let Self::List(list) = self { list } else { &[] }
    }

    pub(super) fn section(&self) -> Option<&Section> {
        if let Self::Section(section) = self { Some(section) } else { None }
    }
}

/// Sections deeper than this are not LVM's.
const DEEPEST: usize = 16;

/// Reads a whole text.
pub(super) fn parse(text: &str) -> Result<Section, String> {
    let mut reader = Reader { rest: text, all: text.len() };
    let section = reader.section(0)?;
    reader.skip();
    if reader.rest.is_empty() { Ok(section) } else { Err(reader.fail("an end was expected")) }
}

struct Reader<'a> {
    rest: &'a str,
    all: usize,
}

impl<'a> Reader<'a> {
    fn fail(&self, what: &str) -> String {
        format!("{what} at byte {}", self.all - self.rest.len())
    }

    /// Passes over white space and comments.
    fn skip(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix('#') {
                Some(comment) => self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest),
                None => return,
            }
        }
    }

    fn take(&mut self, token: char) -> bool {
        self.skip();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|letter| !fits(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn section(&mut self, depth: usize) -> Result<Section, String> {
        if depth > DEEPEST {
            return Err(self.fail("too deep a section"));
        }
        let mut section = Section::new();
        loop {
            self.skip();
            if self.rest.is_empty() || self.rest.starts_with('}') {
                return Ok(section);
            }
            let name = match self.rest.starts_with('"') {
                true => self.quoted()?,
                false => self.word(|c| c.is_alphanumeric() || "+_.-/".contains(c)).to_owned(),
            };
            if name.is_empty() {
                return Err(self.fail("a name was expected"));
            }
            let node = if self.take('=') {
                self.value()?
            } else if self.take('{') {
                let inner = self.section(depth + 1)?;
                if !self.take('}') {
                    return Err(self.fail("a section has no end"));
                }
                Node::Section(inner)
            } else {
                return Err(self.fail("a value or a section was expected"));
            };
            section.insert(name, node);
        }
    }

    fn value(&mut self) -> Result<Node, String> {
        if self.take('[') {
            let mut list = Vec::new();
            while !self.take(']') {
                list.push(self.scalar()?);
                self.take(',');
                if self.rest.is_empty() {
                    return Err(self.fail("a list has no end"));
                }
            }
            return Ok(Node::List(list));
        }
        self.scalar()
    }

    fn scalar(&mut self) -> Result<Node, String> {
        self.skip();
        if self.rest.starts_with('"') {
            return self.quoted().map(Node::Text);
        }
        let word = self.word(|c| c.is_ascii_digit() || "+-.".contains(c));
        // Fractions exist in the format, but in nothing that is read here.
        let whole = word.split('.').next().unwrap_or_default();
        whole.parse().map(Node::Number).map_err(|_| self.fail("a value was expected"))
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut text = String::new();
        let mut letters = self.rest.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                '\\' => text.extend(letters.next().map(|(_, escaped)| escaped)),
                plain => text.push(plain),
            }
        }
        Err(self.fail("a text has no end"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_kinds_are_read() {
        let text = "# head\nversion = 1 # one\nvg-0 {\n a = [\"x\", 2,\n \"y\\\"z\"]\n e = []\n b { c = \"\" }\n f = 0.5\n}";
        let read = parse(text).unwrap();
        assert_eq!(read["version"].number(), Some(1));
        let group = read["vg-0"].section().unwrap();
        let list = group["a"].list();
        assert_eq!((list[0].text(), list[1].number()), (Some("x"), Some(2)));
        assert_eq!(list[2].text(), Some("y\"z"));
        assert_eq!(group["e"].list(), []);
        assert_eq!(group["b"].section().unwrap()["c"].text(), Some(""));
    }

    #[test]
    fn broken_texts_are_refused() {
        for text in ["a", "a =", "a {", "a = [1", "a = \"x", "= 1", "}", "a = x"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"a {".repeat(100)).is_err());
    }
}
