#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use super::*;

fn scanner(limits: Limits) -> Scanner {
    Scanner::open(Path::new("/proc"), limits).unwrap()
}

fn find(processes: &[ProcessInfo], pid: u32) -> Option<&ProcessInfo> {
    processes.iter().find(|process| process.pid.unsigned_abs() == pid)
}

/// A child that is ended when the test ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn we_see_ourselves_in_order_and_in_the_right_units() {
    let processes = scanner(Limits::default()).scan(true).unwrap();
    assert!(processes.is_sorted_by_key(|process| process.pid));
    let me = find(&processes, std::process::id()).expect("this process");
    let executable = std::env::current_exe().unwrap();
    assert_eq!(me.executable, executable.to_string_lossy());
    assert!(me.args.starts_with(&std::env::args().next().unwrap()), "{}", me.args);
    assert!(me.resident_memory > 1 << 20 && me.virtual_memory >= me.resident_memory);
    assert!(me.threads >= 1 && !me.command.is_empty() && !me.command.ends_with('\n'));
    assert_eq!(me.ppid.unsigned_abs(), std::os::unix::process::parent_id());
}

#[test]
fn kernel_threads_are_there() {
    let processes = scanner(Limits::default()).scan(true).unwrap();
    let Some(kthreadd) = processes.iter().find(|process| process.command == "kthreadd") else {
        // In a container of its own there are none to be seen.
        assert!(find(&processes, 2).is_none_or(|second| second.command != "kthreadd"));
        return;
    };
    assert_eq!((kthreadd.executable.as_str(), kthreadd.args.as_str()), ("", ""));
}

#[test]
fn zombies_are_there_and_lose_their_arguments() {
    let mut scanner = scanner(Limits::default());
    let mut child = Guard(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = child.0.id();
    until("its arguments", || {
        let processes = scanner.scan(true).unwrap();
        find(&processes, pid).filter(|process| process.args == "sleep 1000").cloned()
    });
    child.0.kill().unwrap();
    let zombie = until("the zombie", || {
        let processes = scanner.scan(true).unwrap();
        find(&processes, pid).filter(|process| process.state == "Z").cloned()
    });
    assert_eq!((zombie.args.as_str(), zombie.executable.as_str()), ("", ""));
    assert_eq!(zombie.command, "sleep");
    child.0.wait().unwrap();
    assert!(find(&scanner.scan(true).unwrap(), pid).is_none());
}

#[test]
fn another_program_in_the_same_process_is_noticed() {
    let mut scanner = scanner(Limits::default());
    // The same executable and command, so that only the arguments differ.
    let script = "echo ready; read line; exec sh -c 'echo again; read line; : after'";
    let child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Guard(child);
    let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut input = child.0.stdin.take().unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    let pid = child.0.id();
    let before = find(&scanner.scan(true).unwrap(), pid).unwrap().clone();
    assert!(before.args.ends_with(script), "{}", before.args);
    input.write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "again");
    // The clock of one that still runs moves with the next tick.
    let after = until("the new arguments", || {
        let processes = scanner.scan(true).unwrap();
        find(&processes, pid).filter(|process| process.args != before.args).cloned()
    });
    assert_eq!(after.args, "sh -c echo again; read line; : after");
    assert_eq!(after.command, before.command);
}

/// A program that takes another name, and one that writes over its arguments:
/// neither has a new program, and the kernel does not say that they did.
#[test]
fn another_title_of_the_same_program_is_noticed() {
    type Shows = dyn Fn(&ProcessInfo) -> bool;
    let renames = "echo ready; read line; echo renamed > /proc/$$/comm; echo done; read line";
    let rewrites =
        "$|=1; print qq(ready\n); <STDIN>; $0 = q(another title); print qq(done\n); <STDIN>";
    let of_name = |process: &ProcessInfo| process.command == "renamed";
    let of_title = |process: &ProcessInfo| process.args.trim_end() == "another title";
    let cases: [(&str, &str, &str, &Shows); 2] =
        [("sh", "-c", renames, &of_name), ("perl", "-e", rewrites, &of_title)];
    for (program, option, script, shows) in cases {
        let mut command = Command::new(program);
        command.args([option, script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(child) = command.spawn() else {
            assert_eq!(program, "perl", "every machine has a shell");
            selvage_testkit::say_skipped("perl", "it is not installed");
            continue;
        };
        let mut child = Guard(child);
        let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let mut input = child.0.stdin.take().unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "ready");
        let pid = child.0.id();
        let mut scanner = scanner(Limits::default());
        let before = until("it to rest", || {
            let processes = scanner.scan(true).unwrap();
            find(&processes, pid).filter(|process| process.state == "S").cloned()
        });
        assert!(before.args.ends_with(script) && !shows(&before), "{before:?}");
        input.write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "done");
        until("the new title", || {
            let processes = scanner.scan(true).unwrap();
            find(&processes, pid).filter(|process| shows(process)).cloned()
        });
    }
}

/// Those who may see secrets and those who may not are told by turns, each
/// from what was kept for them.
#[test]
fn cached_arguments_of_one_caller_are_not_shown_to_another() {
    let child = Command::new("sh")
        .args(["-c", "read line", "x", "--password=hunter2"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let child = Guard(child);
    let mut scanner = scanner(Limits::default());
    let ends = |secrets, end: &str, scanner: &mut Scanner| {
        let processes = scanner.scan(secrets).unwrap();
        find(&processes, child.0.id()).is_some_and(|process| process.args.ends_with(end))
    };
    until("the arguments", || ends(true, "--password=hunter2", &mut scanner).then_some(()));
    for _ in 0..3 {
        assert!(ends(false, "--password=***", &mut scanner));
        assert!(ends(true, "--password=hunter2", &mut scanner));
    }
}

/// Files are closed with the processes that they are of.
#[test]
fn what_is_gone_is_forgotten() {
    let mut scanner = scanner(Limits::default());
    let mut child = Guard(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = child.0.id().cast_signed();
    scanner.scan(true).unwrap();
    assert!(scanner.known.contains_key(&pid));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    scanner.scan(true).unwrap();
    assert!(!scanner.known.contains_key(&pid));
    let open = scanner.known.values().filter(|known| known.file.is_some()).count();
    assert_eq!(scanner.open, open);
}

#[test]
fn a_viewer_sees_no_secrets() {
    let child = Command::new("sh")
        .args(["-c", "read line", "x", "--password=hunter2"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let child = Guard(child);
    let mut scanner = scanner(Limits::default());
    let shown = |scanner: &mut Scanner, secrets| {
        let processes = scanner.scan(secrets).unwrap();
        find(&processes, child.0.id()).map(|process| process.args.clone())
    };
    until("the arguments", || {
        shown(&mut scanner, true).filter(|args| args.ends_with("--password=hunter2"))
    });
    let redacted = shown(&mut scanner, false).unwrap();
    assert!(redacted.ends_with("--password=***"), "{redacted}");
}

#[test]
fn open_files_and_arguments_are_bounded() {
    let limits = Limits { open_files: 3, arguments: 64, arguments_total: 0, arguments_late: 4 };
    let mut scanner = scanner(limits);
    for _ in 0..3 {
        let processes = scanner.scan(true).unwrap();
        assert!(processes.len() > 3 && processes.iter().all(|process| process.args.len() <= 4));
        assert!(scanner.known.values().filter(|known| known.file.is_some()).count() <= 3);
    }
    assert!(scanner.open <= 3);
}

#[test]
fn long_arguments_are_cut() {
    let long = "x".repeat(100_000);
    let child = Guard(
        Command::new("sh").args(["-c", "read line", &long]).stdin(Stdio::piped()).spawn().unwrap(),
    );
    let limits = Limits::default();
    let mut scanner = scanner(limits);
    let scanned = until("the arguments", || {
        let processes = scanner.scan(true).unwrap();
        find(&processes, child.0.id()).filter(|process| process.args.contains("xxx")).cloned()
    });
    assert_eq!(scanned.args.len(), limits.arguments);
}

/// A process that rests is not read again, and seen at once when it stirs or
/// loses its parent.
#[test]
fn an_idle_process_is_reported_as_it_is() {
    let script = "exec 3<&0; sh -c 'echo $$; read line; : ; read line' <&3 & wait";
    let child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut parent = Guard(child);
    let mut said = BufReader::new(parent.0.stdout.take().unwrap()).lines();
    let mut input = parent.0.stdin.take().unwrap();
    let pid: u32 = said.next().unwrap().unwrap().parse().unwrap();
    let mut scanner = scanner(Limits::default());
    let ran = |scanner: &Scanner| {
        scanner.snapshots[1].reader().find(pid.cast_signed()).and_then(|(row, _)| row.ran)
    };
    let rests = |scanner: &Scanner| ran(scanner).is_some();
    let before = until("it to rest", || {
        let processes = scanner.scan(true).unwrap();
        find(&processes, pid).filter(|_| rests(&scanner)).cloned()
    });
    assert_eq!((before.state.as_str(), before.ppid.unsigned_abs()), ("S", parent.0.id()));
    assert_eq!(find(&scanner.scan(true).unwrap(), pid), Some(&before), "and told the same again");
    let clock = ran(&scanner);
    input.write_all(b"\n").unwrap();
    until("it to stir", || {
        scanner.scan(true).unwrap();
        (rests(&scanner) && ran(&scanner) != clock).then_some(())
    });
    parent.0.kill().unwrap();
    parent.0.wait().unwrap();
    let processes = scanner.scan(true).unwrap();
    let orphan = find(&processes, pid).expect("it is still there");
    assert_ne!(orphan.ppid.unsigned_abs(), parent.0.id());
    drop(input);
    until("its end", || find(&scanner.scan(true).unwrap(), pid).is_none().then_some(()));
}

/// Processes that come and go by the thousand: no scan fails, and those that
/// stay are in every one.
#[test]
fn a_fork_storm_fails_no_scan() {
    let stop = AtomicBool::new(false);
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Fifty short processes a shell, as fast as they go.
                    let storm = "i=0; while [ $i -lt 50 ]; do (:) & i=$((i+1)); done; wait";
                    let _ = Command::new("sh").args(["-c", storm]).status();
                    made.fetch_add(50, Ordering::Relaxed);
                }
            });
        }
        let mut scanner = scanner(Limits::default());
        let begun = Instant::now();
        let mut scans = 0;
        while scans < 200 && (made.load(Ordering::Relaxed) < 4000 || scans < 50) {
            let processes = scanner.scan(true).expect("no scan fails");
            assert!(find(&processes, std::process::id()).is_some());
            assert!(find(&processes, 1).is_some());
            scans += 1;
            if begun.elapsed() > Duration::from_secs(5) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(scans > 0 && made.load(Ordering::Relaxed) > 0);
    });
}
