#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selvage_fuzz_targets::run("restic_documents", bytes));
