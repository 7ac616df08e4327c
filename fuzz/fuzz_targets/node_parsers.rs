//! Any bytes as a file of the kernel or a record of its log: read, left out or
//! refused with words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvage_node::{host, kmsg, proc};

fuzz_target!(|bytes: &[u8]| {
    if let Some(stat) = proc::stat(bytes) {
        assert!(
            bytes
                .windows(stat.comm.len().max(1))
                .any(|part| part == stat.comm || stat.comm.is_empty())
        );
    }
    let _ = proc::meminfo(bytes);
    let _ = (host::system_stat(bytes), host::loadavg(bytes), host::diskstats(bytes));
    let _ = (host::interfaces(bytes), host::mounts(bytes), host::pressure(bytes));
    let _ = host::keyed(bytes).count();
    if let Ok(record) = kmsg::parse(bytes) {
        let boot = kmsg::Boot::new(0);
        assert!(record.to_text(boot).contains(&b'\n'));
        assert!(record.to_json(boot).ends_with(b"}\n"));
    }
    if let Ok(line) = std::str::from_utf8(bytes) {
        let words: Vec<&str> = line.split('\0').collect();
        assert_eq!(proc::redact(words.iter().copied()).len(), words.len());
    }
});
