//! The panic hook belongs to the process, so this has a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io,
    panic::catch_unwind,
    sync::{Arc, Mutex},
};

use selvage_kit::telemetry::{Metrics, install_panic_hook};

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

#[test]
fn a_panic_is_logged_and_counted() {
    let metrics = Metrics::new("1");
    let captured = Captured::default();
    let writer = captured.clone();
    let log = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
    install_panic_hook(&metrics);
    tracing::subscriber::with_default(log, || {
        catch_unwind(|| panic!("number {}", 7)).unwrap_err();
    });
    let _ = std::panic::take_hook();

    let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["fields"]["message"], "thread panicked");
    assert_eq!(line["fields"]["panic"], "number 7");
    let location = line["fields"]["location"].as_str().unwrap();
    assert!(location.contains("tests/telemetry.rs:"), "{location}");
    assert!(metrics.render().contains("selvage_panics_total 1\n"));
}
