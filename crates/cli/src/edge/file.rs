//! Files of objects: the original's data sets (`flavors:`, `apps:` and so on,
//! each a list), documents with a `kind`, and, where the kind is known, plain
//! objects and lists of them.

use std::path::Path;

use super::{
    Draft, Kind,
    catalog::{kind, kinds},
    draft::Position,
    scalar::{Wrong, normal},
    yaml::{self, Content, Node},
};
use crate::{Error, io::Io, suggest};

/// An object of a file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: &'static Kind,
    pub(crate) draft: Draft,
}

/// The text of a file, or of stdin for `-`, with its name.
pub(crate) fn text(path: &Path, io: &mut Io) -> Result<(String, String), Error> {
    if path == Path::new("-") {
        return Ok((io.read_input("the objects")?, "stdin".into()));
    }
    let text = std::fs::read_to_string(path).map_err(|source| Error::read(path, source))?;
    Ok((text, path.display().to_string()))
}

/// All objects of a text. With an `expected` kind, documents may leave out
/// what they are, and nothing else may be there.
pub(crate) fn entries(
    text: &str,
    origin: &str,
    expected: Option<&'static Kind>,
) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for document in yaml::documents(text, origin)? {
        read(&document, &Position::new(origin), expected, &mut entries)?;
    }
    if let Some(expected) = expected
        && let Some(other) = entries.iter().find(|entry| entry.kind.name != expected.name)
    {
        return Err(Error::Invalid {
            message: format!(
                "{origin} holds {} too, not only {}",
                other.kind.plural, expected.plural
            ),
            hints: vec![format!("`selvage apply -f {origin}` takes all kinds")],
        });
    }
    if entries.is_empty() {
        return Err(Error::invalid(format!("{origin} holds no object")));
    }
    Ok(entries)
}

fn read(
    document: &Node,
    position: &Position,
    expected: Option<&'static Kind>,
    entries: &mut Vec<Entry>,
) -> Result<(), Error> {
    let members = match (&document.content, expected) {
        (Content::Map(members), _) => members,
        (Content::List(items), _) => {
            return items.iter().try_for_each(|item| read(item, position, expected, entries));
        }
        _ => return Err(position.wrong(document.line, plainly("must be a mapping or a list"))),
    };
    if let Some((_, line, value)) = members.iter().find(|(key, ..)| normal(key) == "kind") {
        let Content::Text(word) = &value.content else {
            return Err(position.wrong(*line, plainly("kind must be a single word")));
        };
        let kind = known(word, *line, position)?;
        let rest = members.iter().filter(|(key, ..)| normal(key) != "kind").cloned().collect();
        let object = Node { line: document.line, content: Content::Map(rest) };
        return push(kind, &object, position, entries);
    }
    let is_object = |kind: &Kind| {
        let fields: Vec<String> = kind.message.fields().map(|f| normal(f.name())).collect();
        members.iter().any(|(key, ..)| normal(key) == "key" && fields.contains(&"key".into()))
    };
    if let Some(expected) = expected.filter(|kind| is_object(kind)) {
        return push(expected, document, position, entries);
    }
    members.iter().try_for_each(|member| section(member, position, entries))
}

/// One list of a data set.
fn section(
    (word, line, value): &(String, usize, Node),
    position: &Position,
    entries: &mut Vec<Entry>,
) -> Result<(), Error> {
    let kind = known(word, *line, position)?;
    match &value.content {
        Content::List(items) => {
            items.iter().try_for_each(|item| push(kind, item, position, entries))
        }
        Content::Map(_) => push(kind, value, position, entries),
        Content::Null => Ok(()),
        Content::Text(_) => Err(position.wrong(*line, plainly(&format!("{word} must be a list")))),
    }
}

fn push(
    kind: &'static Kind,
    node: &Node,
    position: &Position,
    entries: &mut Vec<Entry>,
) -> Result<(), Error> {
    let mut draft = Draft::new(kind);
    draft.fill(node, position)?;
    entries.push(Entry { kind, draft });
    Ok(())
}

/// The kind of a word, if objects of it can be made.
fn known(word: &str, line: usize, position: &Position) -> Result<&'static Kind, Error> {
    match kind(word) {
        Some(kind) if kind.order().is_some() => Ok(kind),
        Some(kind) => {
            let text = format!("{} are made by the server and can only be shown", kind.plural);
            Err(position.wrong(line, plainly(&text)))
        }
        None => {
            let makeable = kinds().iter().filter(|kind| kind.order().is_some());
            let words: Vec<&str> =
                makeable.flat_map(|kind| [kind.plural.as_str(), kind.name.as_str()]).collect();
            let message = format!("there is no kind of object {word:?}");
            let suggestions = suggest::closest(word, words);
            Err(position.wrong(line, Wrong { message, suggestions }))
        }
    }
}

fn plainly(message: &str) -> Wrong {
    Wrong { message: message.to_owned(), suggestions: Vec::new() }
}
