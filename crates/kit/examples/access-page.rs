//! Prints `docs/access.md`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    let page = selvage_kit::access::page::page().map_err(io::Error::other)?;
    io::stdout().lock().write_all(page.as_bytes())
}
