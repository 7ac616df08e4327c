//! YAML as a tree of texts that know their line. What a text means is decided
//! by the field it fills, so that a version `1.10` stays one.

use std::iter::Peekable;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

use crate::Error;

/// No file of objects is nested this deep.
const DEEPEST: usize = 64;

/// A value and the line it begins on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) content: Content,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    Null,
    Text(String),
    List(Vec<Node>),
    /// Keys with their line, in the order of the file.
    Map(Vec<(String, usize, Node)>),
}

impl Node {
    pub(crate) fn text(text: &str) -> Self {
        Self { line: 0, content: Content::Text(text.to_owned()) }
    }

    /// Name of its type, for saying that it is something else than it should be.
    pub(crate) fn is_a(&self) -> &'static str {
        match self.content {
            Content::Null => "nothing",
            Content::Text(_) => "a single value",
            Content::List(_) => "a list",
            Content::Map(_) => "a mapping",
        }
    }
}

/// All documents of a text; `origin` names it in errors. Documents without
/// content are left out.
pub(crate) fn documents(text: &str, origin: &str) -> Result<Vec<Node>, Error> {
    let mut reader =
        Reader { events: Parser::new_from_str(text).peekable(), origin: origin.to_owned() };
    let mut documents = Vec::new();
    loop {
        match reader.next()? {
            None | Some((Event::StreamEnd, _)) => return Ok(documents),
            Some((Event::DocumentStart(..), _)) => {
                let node = reader.node(0)?;
                if node.content != Content::Null {
                    documents.push(node);
                }
            }
            Some(_) => {}
        }
    }
}

struct Reader<'a, I: Iterator<Item = Parsed<'a>>> {
    events: Peekable<I>,
    origin: String,
}

type Parsed<'a> =
    Result<(Event<'a>, serde_saphyr::granit_parser::Span), serde_saphyr::granit_parser::ScanError>;

impl<'a, I: Iterator<Item = Parsed<'a>>> Reader<'a, I> {
    fn next(&mut self) -> Result<Option<(Event<'a>, usize)>, Error> {
        loop {
            match self.events.next() {
                None => return Ok(None),
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => return Ok(Some((event, span.start.line()))),
                Some(Err(error)) => {
                    return Err(self.wrong(error.marker().line(), "is not YAML", &error.info()));
                }
            }
        }
    }

    fn wrong(&self, line: usize, what: &str, why: &str) -> Error {
        Error::Field {
            path: format!("{} line {line}", self.origin),
            message: if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") },
            suggestions: Vec::new(),
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, Error> {
        let Some((event, line)) = self.next()? else {
            return Ok(Node { line: 0, content: Content::Null });
        };
        self.node_from(event, line, depth)
    }

    fn node_from(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node, Error> {
        if depth > DEEPEST {
            return Err(self.wrong(line, "is nested too deeply", ""));
        }
        let content = match event {
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if matches!(&*text, "" | "~" | "null" | "Null" | "NULL") =>
            {
                Content::Null
            }
            Event::Scalar(text, ..) => Content::Text(text.into_owned()),
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            // Ten lines of them can mean gigabytes, and no data set has any.
            Event::Alias(_) => {
                return Err(self.wrong(line, "refers to another place with *", "write it out"));
            }
            _ => Content::Null,
        };
        Ok(Node { line, content })
    }

    fn list(&mut self, depth: usize) -> Result<Content, Error> {
        let mut items = Vec::new();
        while let Some((event, line)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.push(self.node_from(event, line, depth + 1)?);
        }
        Ok(Content::List(items))
    }

    fn map(&mut self, depth: usize) -> Result<Content, Error> {
        let mut entries: Vec<(String, usize, Node)> = Vec::new();
        while let Some((event, line)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let Event::Scalar(key, ..) = event else {
                return Err(self.wrong(line, "has a key that is no single value", ""));
            };
            if entries.iter().any(|(other, ..)| *other == key) {
                return Err(self.wrong(line, &format!("has the key {key:?} twice"), ""));
            }
            let value = self.node(depth + 1)?;
            entries.push((key.into_owned(), line, value));
        }
        Ok(Content::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn texts_stay_as_written_and_know_their_line() {
        let documents = documents("# x\na: 1.10\nb:\n- ~\n- 'null'\n---\n---\n{c: |\n}", "f");
        // The last document is broken on purpose.
        assert!(documents.is_err());
        let found = super::documents("# x\na: 1.10\nb:\n- ~\n- 'null'\n---\n---\n- c\n", "f");
        let found = found.unwrap();
        assert_eq!(found.len(), 2);
        let Content::Map(entries) = &found[0].content else { panic!("{found:?}") };
        assert_eq!((entries[0].0.as_str(), entries[0].1), ("a", 2));
        assert_eq!(entries[0].2.content, Content::Text("1.10".into()));
        let Content::List(items) = &entries[1].2.content else { panic!("{found:?}") };
        assert_eq!(items[0].content, Content::Null);
        assert_eq!(items[1], Node { line: 5, content: Content::Text("null".into()) });
    }

    #[test]
    fn what_is_not_yaml_is_named_by_its_line() {
        let refusal = |text: &str| documents(text, "f.yaml").unwrap_err().to_string();
        assert!(refusal("a: 1\nb: [").starts_with("f.yaml line "), "{}", refusal("a: 1\nb: ["));
        assert_eq!(refusal("a: 1\na: 2"), "f.yaml line 2: has the key \"a\" twice");
        assert!(refusal("a: &x [1]\nb: *x").starts_with("f.yaml line 2: refers"));
        assert!(
            refusal(&"[".repeat(100)).contains("nested")
                || refusal(&"[".repeat(100)).contains("f.yaml")
        );
    }
}
