//! The text format of Prometheus, written into one buffer.

use std::fmt::Write;

use bytes::Bytes;

/// A page under way.
#[derive(Debug, Default)]
pub(super) struct Page(String);

/// Type of a metric.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// Unknown type, as node_exporter says of metrics that it passes on by
    /// name.
    Untyped,
}

/// A metric, or a mode of one, and where its number is.
pub(super) type Named<T> = (&'static str, fn(&T) -> u64);

/// The same, with words of help.
pub(super) type Helped<T> = (&'static str, &'static str, fn(&T) -> u64);

/// A number of a metric.
pub(super) trait Number {
    fn write(self, out: &mut String);
}

impl Number for u64 {
    fn write(self, out: &mut String) {
        // Writing to a String does not fail.
        let _ = write!(out, "{self}");
    }
}

impl Number for f64 {
    fn write(self, out: &mut String) {
        let _ = write!(out, "{self}");
    }
}

impl Page {
    /// Begins a metric.
    pub(super) fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Untyped => "untyped",
        };
        for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"] {
            self.0.push_str(part);
        }
    }

    /// A line of it. `labels` is what stands between the braces.
    pub(super) fn line(&mut self, name: &str, labels: &str, number: impl Number) {
        self.0.push_str(name);
        if !labels.is_empty() {
            self.0.push('{');
            self.0.push_str(labels);
            self.0.push('}');
        }
        self.0.push(' ');
        number.write(&mut self.0);
        self.0.push('\n');
    }

    /// A metric with one line and no labels.
    pub(super) fn single(&mut self, name: &str, kind: Kind, help: &str, number: impl Number) {
        self.metric(name, kind, help);
        self.line(name, "", number);
    }

    /// Text that is in the format already.
    pub(super) fn verbatim(&mut self, text: &str) {
        self.0.push_str(text);
        if !text.is_empty() && !text.ends_with('\n') {
            self.0.push('\n');
        }
    }

    /// Returns whether a metric of that name is on the page.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains(&format!("# TYPE {name} "))
    }

    pub(super) fn finish(self) -> Bytes {
        Bytes::from(self.0)
    }
}

/// `name="value"` after what is there.
pub(super) fn label(labels: &mut String, name: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    labels.push_str(name);
    labels.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => labels.push_str("\\\\"),
            '"' => labels.push_str("\\\""),
            '\n' => labels.push_str("\\n"),
            other => labels.push(other),
        }
    }
    labels.push('"');
}

/// One label.
pub(super) fn labelled(name: &str, value: &str) -> String {
    let mut labels = String::new();
    label(&mut labels, name, value);
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let mut labels = labelled("a", "x\"y\\z\n");
        label(&mut labels, "b", "c");
        assert_eq!(labels, r#"a="x\"y\\z\n",b="c""#);
    }

    #[test]
    fn a_metric_reads_as_prometheus_wants_it() {
        let mut page = Page::default();
        page.metric("m", Kind::Counter, "Help.");
        page.line("m", "a=\"b\"", 3_u64);
        page.single("g", Kind::Gauge, "More.", 0.5);
        let expected = "# HELP m Help.\n# TYPE m counter\nm{a=\"b\"} 3\n\
                        # HELP g More.\n# TYPE g gauge\ng 0.5\n";
        assert_eq!(page.finish(), expected);
    }
}
