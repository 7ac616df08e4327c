//! Prints the wire of all contracts, for `proto/wire.lock`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().lock().write_all(selvage_api::lock::render(selvage_api::pool()).as_bytes())
}
