//! The program that holds the namespaces of a pod: it waits, and that is all.
//! It is so small that it is written down here instead of being fetched.

/// Address at which the kernel loads it.
const BASE: u64 = 0x40_0000;
/// Of the header of the file, and of the one segment.
const HEADERS: u64 = 64 + 56;

/// The number of the machine in a file's header, and what it has to do: wait
/// for a signal, for ever.
#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &[u8]) = (
    62,
    &[
        0xb8, 0x22, 0x00, 0x00, 0x00, // mov eax, 34 (pause)
        0x0f, 0x05, // syscall
        0xeb, 0xf7, // jmp to the first
    ],
);
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &[u8]) = (
    183,
    &[
        0x00, 0x00, 0x80, 0xd2, // mov x0, #0
        0x01, 0x00, 0x80, 0xd2, // mov x1, #0
        0x02, 0x00, 0x80, 0xd2, // mov x2, #0
        0x03, 0x00, 0x80, 0xd2, // mov x3, #0
        0x28, 0x09, 0x80, 0xd2, // mov x8, #73 (ppoll)
        0x01, 0x00, 0x00, 0xd4, // svc #0
        0xfa, 0xff, 0xff, 0x17, // b to the first
    ],
);

/// The whole file.
pub(crate) fn program() -> Vec<u8> {
    let (machine, code) = MACHINE;
    let size = HEADERS + code.len() as u64;
    let mut file = Vec::new();
    // 64 bits, little endian, version 1, any system.
    file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let half = |file: &mut Vec<u8>, number: u16| file.extend(number.to_le_bytes());
    half(&mut file, 2); // is to be run
    half(&mut file, machine);
    file.extend(1_u32.to_le_bytes());
    file.extend((BASE + HEADERS).to_le_bytes()); // begins here
    file.extend(64_u64.to_le_bytes()); // segments
    file.extend(0_u64.to_le_bytes()); // no sections
    file.extend(0_u32.to_le_bytes());
    for number in [64, 56, 1, 0, 0, 0] {
        half(&mut file, number);
    }
    file.extend(1_u32.to_le_bytes()); // to be loaded
    file.extend(5_u32.to_le_bytes()); // read and run
    for number in [0, BASE, BASE, size, size, 0x1000] {
        file.extend(number.to_le_bytes());
    }
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::{fs, os::unix::fs::PermissionsExt, process::Command, time::Duration};

    #[test]
    fn it_runs_and_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pause");
        fs::write(&path, super::program()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = Command::new(&path).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(child.try_wait().unwrap(), None);
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        assert!(status.contains("State:\tS"), "{status}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
