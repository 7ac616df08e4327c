//! The log: format, filter, and lines nobody can forge.

use std::{
    error::Error as StdError,
    fmt::{self, Write as _},
    io::IsTerminal,
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use tracing::{
    Subscriber,
    field::{Field, Visit},
};

use tracing_subscriber::{
    EnvFilter, Layer,
    field::RecordFields,
    fmt::{FormatFields, MakeWriter, format::Writer, time::FormatTime},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use super::Error;

/// Format of a line of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(Error::Format(other.to_owned())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// The `log` section of every configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogOptions {
    /// `text` or `json`.
    pub format: LogFormat,
    /// A level, or levels by module: `info,selvage_store=debug`.
    pub filter: String,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// Sets up the log of this process: standard error, in colour on a terminal.
pub fn init(options: &LogOptions) -> Result<(), Error> {
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::registry()
        .with(layer(options, std::io::stderr, colour)?)
        .with(super::audit::layer())
        .try_init()
        .map_err(|_| Error::Twice)
}

fn layer<S, W>(
    options: &LogOptions,
    writer: W,
    colour: bool,
) -> Result<Box<dyn Layer<S> + Send + Sync>, Error>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder().parse(&options.filter).map_err(|error| Error::Filter {
        filter: options.filter.clone(),
        reason: error.to_string(),
    })?;
    let lines = tracing_subscriber::fmt::layer().with_timer(Rfc3339).with_writer(writer);
    Ok(match options.format {
        LogFormat::Text => {
            lines.with_ansi(colour).fmt_fields(EscapedFields).with_filter(filter).boxed()
        }
        LogFormat::Json => lines.with_ansi(false).json().with_filter(filter).boxed(),
    })
}

struct Rfc3339;

impl FormatTime for Rfc3339 {
    #[allow(clippy::disallowed_methods, reason = "lines of a log have the time of the machine")]
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.6}", jiff::Timestamp::now())
    }
}

/// Writes fields as `key=value`, with control characters escaped.
struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line { writer, empty: true, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'writer> {
    writer: Writer<'writer>,
    empty: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        // What the bridge from the `log` crate adds says the target once more.
        if field.name().starts_with("log.") {
            return Ok(());
        }
        if !std::mem::replace(&mut self.empty, false) {
            self.writer.write_char(' ')?;
        }
        if field.name() != "message" {
            write!(self.writer, "{}=", field.name().trim_start_matches("r#"))?;
        }
        write!(Escaping(&mut self.writer), "{value}")
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{value:?}"));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn StdError + 'static)) {
        let chain = selvage_api::chain(value);
        if self.result.is_ok() {
            self.result = self.write(field, format_args!("{chain}"));
        }
    }
}

struct Escaping<'a, 'writer>(&'a mut Writer<'writer>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut clean_from = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| deceives(*c)) {
            self.0.write_str(&text[clean_from..at])?;
            write!(self.0, "{}", c.escape_default())?;
            clean_from = at + c.len_utf8();
        }
        self.0.write_str(&text[clean_from..])
    }
}

/// Characters that end a line, drive a terminal, or turn text round.
fn deceives(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing::{error, error_span, info, warn};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, filter: &str, colour: bool, act: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let options = LogOptions { format, filter: filter.to_owned() };
        let layer = layer(&options, move || writer.clone(), colour).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), act);
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_text_line_has_time_level_target_message_and_fields() {
        let text = logged(LogFormat::Text, "info", false, || {
            let _span = error_span!("call", method = "Login").entered();
            warn!(count = 3, name = "a b", shown = %"x", "too many");
        });
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z'), "{time}");
        assert_eq!(
            rest.trim_start(),
            "WARN call{method=\"Login\"}: selvage_kit::telemetry::logging::tests: too many count=3 name=\"a b\" shown=x\n"
        );
    }

    #[test]
    fn text_from_outside_cannot_forge_a_line_nor_drive_a_terminal() {
        let evil = "x\n2026-01-01T00:00:00Z ERROR forged\r\x1b[2J\u{9b}31m\u{202e}\u{2028}\0";
        for colour in [false, true] {
            let text = logged(LogFormat::Text, "info", colour, || {
                let _span = error_span!("call", path = %evil).entered();
                info!(shown = %evil, quoted = evil, debug = ?evil, "said {evil}");
                error!(error = &io::Error::other(evil) as &dyn StdError, "failed");
            });
            assert_eq!(text.lines().count(), 2, "{text}");
            for bad in ["\x1b[2J", "\r", "\u{9b}", "\u{202e}", "\u{2028}", "\0"] {
                assert!(!text.contains(bad), "{bad:?} in {text:?}");
            }
            assert!(
                text.contains(r"shown=x\n2026-01-01T00:00:00Z ERROR forged\r\u{1b}[2J"),
                "{text}"
            );
            assert_eq!(text.contains("\x1b["), colour);
        }
        let json = logged(LogFormat::Json, "info", true, || info!(shown = %evil, "said {evil}"));
        assert_eq!(json.lines().count(), 1, "{json}");
        assert!(!json.contains('\x1b'));
    }

    #[test]
    fn a_json_line_is_an_object_with_a_time() {
        let json = logged(LogFormat::Json, "info", false, || info!(count = 3, "done"));
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(line["fields"]["message"], "done");
        assert_eq!(line["fields"]["count"], 3);
        assert!(line["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    }

    #[test]
    fn an_error_is_logged_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Link(&'static str, #[source] Option<Box<Link>>);

        let chain =
            Link("outer", Some(Box::new(Link("middle", Some(Box::new(Link("root", None)))))));
        let text = logged(LogFormat::Text, "info", false, || {
            error!(error = &chain as &dyn StdError, "failed");
        });
        assert!(text.ends_with("failed error=outer: middle: root\n"), "{text}");
    }

    #[test]
    fn the_filter_holds_and_a_bad_one_is_refused_by_name() {
        let act = || {
            info!("quiet");
            warn!("loud");
        };
        let text = logged(LogFormat::Text, "warn", false, act);
        assert!(text.contains("loud") && !text.contains("quiet"), "{text}");
        let options = LogOptions { filter: "info,a=noise".into(), ..LogOptions::default() };
        let error = layer::<tracing_subscriber::Registry, _>(&options, io::sink, false).err();
        let error = error.unwrap().to_string();
        assert!(error.starts_with(r#"log filter "info,a=noise": "#), "{error}");
        assert!("xml".parse::<LogFormat>().is_err());
    }
}
