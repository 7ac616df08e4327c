//! Printing: one renderer for every message, driven by its descriptor.
//!
//! Whatever is printed is a JSON value with the contract's field names; a
//! table is a view of it.

mod columns;
mod table;

use std::io::Write;

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, SerializeOptions,
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    Error,
    edge::plain::{self, Spelling},
    error::printable,
};

pub(crate) use columns::Column;
use table::Table;

// How to print. No doc comments: clap would make a paragraph of each choice.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    // The most telling columns.
    Table,
    // All columns.
    Wide,
    // One line a message.
    Json,
    // One document a message.
    Yaml,
    // A list in YAML, names spelt as the original's client does.
    Edgectl,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Table { wide: bool },
    Lines,
    Pretty,
    Yaml,
    Edgectl,
}

/// Prints messages one after another.
pub(crate) struct Printer<'a> {
    out: &'a mut dyn Write,
    layout: Layout,
    colour: bool,
    all_fields: bool,
    /// Columns of the terminal; none where lines may be of any length.
    columns: Option<usize>,
    printed: usize,
    table: Option<Table>,
    notice: Option<Notice<'a>>,
}

/// Hint, shown once, that a table lost columns.
pub(crate) struct Notice<'a> {
    pub(crate) err: &'a mut dyn Write,
    pub(crate) told: &'a mut bool,
}

impl Notice<'_> {
    fn tell(&mut self, table: &Table) -> Result<(), Error> {
        if !table.lost_columns() || std::mem::replace(self.told, true) {
            return Ok(());
        }
        let text = "some columns do not fit: -o wide or -o yaml shows all";
        writeln!(self.err, "{text}").map_err(Error::Output)
    }
}

impl<'a> Printer<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, format: Format, colour: bool) -> Self {
        let layout = match format {
            Format::Table => Layout::Table { wide: false },
            Format::Wide => Layout::Table { wide: true },
            Format::Json => Layout::Lines,
            Format::Yaml => Layout::Yaml,
            Format::Edgectl => Layout::Edgectl,
        };
        Self {
            out,
            layout,
            colour,
            all_fields: false,
            columns: None,
            printed: 0,
            table: None,
            notice: None,
        }
    }

    /// Prints JSON for people, over several lines.
    pub(crate) fn pretty(out: &'a mut dyn Write, colour: bool) -> Self {
        Self { layout: Layout::Pretty, ..Self::new(out, Format::Json, colour) }
    }

    /// Prints fields that have their default value too.
    pub(crate) fn all_fields(self, all_fields: bool) -> Self {
        Self { all_fields, ..self }
    }

    /// Keeps tables within so many columns; `-o wide` shows all there is.
    pub(crate) fn columns(self, columns: Option<usize>) -> Self {
        let columns = columns.filter(|_| self.layout != Layout::Table { wide: true });
        Self { columns, ..self }
    }

    /// Tells a person of columns that tables lost.
    pub(crate) fn notice(self, notice: Option<Notice<'a>>) -> Self {
        Self { notice, ..self }
    }

    pub(crate) fn is_table(&self) -> bool {
        matches!(self.layout, Layout::Table { .. })
    }

    /// Prints a message: its fields, then the list of messages it holds, if it
    /// holds one, as a table.
    pub(crate) fn message(&mut self, message: &DynamicMessage) -> Result<(), Error> {
        let wide = match self.layout {
            Layout::Table { wide } => wide,
            Layout::Edgectl => return self.value(&plain::value(message, Spelling::Edgectl)),
            _ => return self.value(&to_value(message, self.all_fields)?),
        };
        let value = to_value(message, true)?;
        let descriptor = message.descriptor();
        let mut leaves = columns::leaves(&descriptor);
        let Some((field, element)) = columns::list_field(&descriptor) else {
            return self.fields(&leaves, &value);
        };
        let details = columns::details(&descriptor);
        leaves.retain(|column| {
            let is = |field: &FieldDescriptor| column.path == [field.name()];
            !is(&field) && !details.iter().any(|(detail, _)| is(detail))
        });
        if !leaves.is_empty() {
            self.fields(&leaves, &value)?;
            self.blank()?;
        }
        let rows = |field: &FieldDescriptor| value.get(field.name()).and_then(Value::as_array);
        let listed = rows(&field).map_or(&[][..], Vec::as_slice);
        self.rows(&columns::of(&element, wide), listed)?;
        for (field, element) in details.iter().filter(|_| wide) {
            self.blank()?;
            let listed = rows(field).map_or(&[][..], Vec::as_slice);
            self.rows(&columns::of(element, wide), listed)?;
        }
        Ok(())
    }

    /// Prints a message as a row under those before it. A row waits for
    /// [`Printer::flush`], which knows how wide its columns must be.
    pub(crate) fn row(&mut self, message: &DynamicMessage) -> Result<(), Error> {
        self.row_with(message, &[])
    }

    /// The same with values for columns that are no fields of the message. They
    /// show in tables alone.
    pub(crate) fn row_with(
        &mut self,
        message: &DynamicMessage,
        more: &[(&str, String)],
    ) -> Result<(), Error> {
        let wide = match self.layout {
            Layout::Table { wide } => wide,
            Layout::Edgectl => {
                let item = plain::value(message, Spelling::Edgectl);
                return self.value(&Value::Array(vec![item]));
            }
            _ => return self.message(message),
        };
        let mut value = to_value(message, true)?;
        if let Value::Object(members) = &mut value {
            let more = more.iter().map(|(name, text)| ((*name).to_owned(), text.as_str().into()));
            members.extend(more);
        }
        let table =
            self.table.get_or_insert_with(|| Table::new(columns::of(&message.descriptor(), wide)));
        table.push(&value);
        Ok(())
    }

    /// Writes the rows that wait.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if let Some(mut table) = self.table.take() {
            self.write(&mut table)?;
            self.table = Some(table);
        }
        self.out.flush().map_err(Error::Output)
    }

    /// An empty line between two tables.
    pub(crate) fn blank(&mut self) -> Result<(), Error> {
        writeln!(self.out).map_err(Error::Output)
    }

    /// Prints values under the given columns; as an array when not a table.
    pub(crate) fn values(&mut self, columns: &[Column], rows: &[Value]) -> Result<(), Error> {
        match self.layout {
            Layout::Table { wide } => {
                let shown: Vec<Column> =
                    columns.iter().filter(|column| wide || !column.wide).cloned().collect();
                self.rows(&shown, rows)
            }
            _ => self.value(&Value::Array(rows.to_vec())),
        }
    }

    /// Prints rows as the clients of the original node services do: for tables
    /// alone.
    pub(crate) fn original(&mut self, columns: &[Column], rows: &[Value]) -> Result<(), Error> {
        let wide = self.layout == Layout::Table { wide: true };
        let shown = columns.iter().filter(|column| wide || !column.wide).cloned().collect();
        let mut table = Table::original(shown);
        rows.iter().for_each(|row| table.push(row));
        self.write(&mut table)
    }

    /// Prints one value that is no message; as a table its members.
    pub(crate) fn record(&mut self, value: &Value) -> Result<(), Error> {
        match (self.layout, value) {
            (Layout::Table { .. }, Value::Object(members)) => {
                let columns: Vec<Column> =
                    members.keys().map(|key| Column::new(key, key)).collect();
                self.fields(&columns, value)
            }
            _ => self.value(value),
        }
    }

    fn rows(&mut self, columns: &[Column], rows: &[Value]) -> Result<(), Error> {
        let mut table = Table::new(columns.to_vec());
        rows.iter().for_each(|row| table.push(row));
        self.write(&mut table)
    }

    fn write(&mut self, table: &mut Table) -> Result<(), Error> {
        table.write(self.out, self.colour, self.columns).map_err(Error::Output)?;
        self.notice.as_mut().map_or(Ok(()), |notice| notice.tell(table))
    }

    fn fields(&mut self, columns: &[Column], value: &Value) -> Result<(), Error> {
        if self.printed > 0 {
            writeln!(self.out).map_err(Error::Output)?;
        }
        self.printed += 1;
        table::write_fields(self.out, columns, value).map_err(Error::Output)
    }

    fn value(&mut self, value: &Value) -> Result<(), Error> {
        let text = match self.layout {
            Layout::Pretty => serde_json::to_string_pretty(value).map_err(unprintable)?,
            Layout::Yaml => {
                let text = serde_saphyr::to_string(value).map_err(unprintable)?;
                let start = if self.printed > 0 { "---\n" } else { "" };
                format!("{start}{}", text.trim_end())
            }
            // Lists one after another are one list.
            Layout::Edgectl => {
                serde_saphyr::to_string(value).map_err(unprintable)?.trim_end().to_owned()
            }
            Layout::Lines | Layout::Table { .. } => {
                serde_json::to_string(value).map_err(unprintable)?
            }
        };
        self.printed += 1;
        let text = match self.layout {
            Layout::Yaml | Layout::Edgectl => printable(&text),
            _ => escaped(&text),
        };
        writeln!(self.out, "{text}").map_err(Error::Output)?;
        self.out.flush().map_err(Error::Output)
    }
}

/// A generated message by its descriptor.
pub(crate) fn dynamic(name: &str, message: &impl prost::Message) -> Result<DynamicMessage, Error> {
    let descriptor = selvage_api::pool()
        .get_message_by_name(name)
        .ok_or_else(|| Error::Unexpected(format!("the contracts have no {name}")))?;
    DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).map_err(unprintable)
}

/// The message as JSON with the contract's own field names.
pub(crate) fn to_value(message: &DynamicMessage, all_fields: bool) -> Result<Value, Error> {
    let options =
        SerializeOptions::new().use_proto_field_name(true).skip_default_fields(!all_fields);
    let value = message.serialize_with_options(serde_json::value::Serializer, &options);
    let mut value = value.map_err(unprintable)?;
    sort_maps(&mut value, &message.descriptor());
    Ok(value)
}

/// Maps have no order of their own; the same message must print the same.
fn sort_maps(value: &mut Value, descriptor: &MessageDescriptor) {
    let Value::Object(members) = value else { return };
    for field in descriptor.fields() {
        let Kind::Message(inner) = field.kind() else { continue };
        match members.get_mut(field.name()) {
            Some(Value::Object(entries)) if field.is_map() => {
                let mut sorted: Vec<(String, Value)> =
                    std::mem::take(entries).into_iter().collect();
                sorted.sort_by_key(|(key, _)| (key.parse::<i64>().ok(), key.clone()));
                entries.extend(sorted);
            }
            Some(Value::Array(items)) => {
                items.iter_mut().for_each(|item| sort_maps(item, &inner));
            }
            Some(other) => sort_maps(other, &inner),
            None => {}
        }
    }
}

/// Anything of ours as JSON.
pub(crate) fn value_of(thing: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(thing).map_err(unprintable)
}

/// JSON leaves some characters as they are that steer terminals; they can only
/// stand in strings, where an escape means the same.
fn escaped(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut all, c| {
        if c.is_control() && c != '\n' {
            all.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            all.push(c);
        }
        all
    })
}

fn unprintable(error: impl std::fmt::Display) -> Error {
    Error::Unexpected(format!("the answer cannot be printed: {error}"))
}

#[cfg(test)]
mod tests;
