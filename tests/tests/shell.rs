//! `selvage exec` and `selvage logs` into a real container, by both ways; the
//! original's WebRTC stack and a browser at the other end; a terminal that is
//! as it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
};

use selvage_testkit::containers::can_run;
use selvage_tests::{
    Selvage, cloudlet,
    process::{Cli, binary, wait_for},
    real,
};
use serde_json::json;

const WAYS: [&str; 3] = ["direct", "relay", "auto"];

fn write_image(path: &Path) {
    let script = "echo started; exec httpd -f -p 8080 -h /www";
    let names = ["sh", "httpd", "cat", "ls", "sleep", "stty", "echo", "printf", "wc"];
    let image = cloudlet::busybox(&names).command(["/bin/sh", "-c", script]);
    image.write("localhost/web:1", path).unwrap();
}

/// A whole system with a cloudlet and an app `web` on it.
struct Edge {
    cli: Cli,
    selvage: Selvage,
    directory: tempfile::TempDir,
}

const KEY: [&str; 12] = [
    "--developer",
    "acme",
    "--appname",
    "web",
    "--appvers",
    "1",
    "--operator",
    "op",
    "--cloudlet",
    "site",
    "--cluster",
    "autoclusterweb",
];

impl Edge {
    fn up(range: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let scheme = format!("common: {{network_scheme: 10.{range}.0.0/16}}\n");
        std::fs::write(path("site.yaml"), scheme).unwrap();
        write_image(Path::new(&path("web.tar")));
        let site = format!("crm.site={}", path("site.yaml"));
        let images = format!("crm.image_folders={}", directory.path().display());
        let cloudlet = ["--set", "crm.cloudlet=op/site", "--set", &site];
        let flags = [&cloudlet[..], &["--set", "crm.runtime=oci", "--set", &images]].concat();
        let selvage = Selvage::up(&flags);
        let cli = Cli::admin_of(&selvage);
        let made = |line: &str| drop(cli.ok(&line.split(' ').collect::<Vec<_>>()));
        made("flavor create --name s --ram 64 --vcpus 1 --disk 1");
        made("operator create --name op");
        made("developer create --name acme");
        made(
            "cloudlet create --operator op --name site --latitude 1 --longitude 1 --numdynamicips 9",
        );
        wait_for("the cloudlet", || {
            let shown = cli.ok(&["cloudletinfo", "show", "-o", "json"]);
            shown.contains("CLOUDLET_STATE_READY").then_some(())
        });
        let image = path("web.tar");
        made(&format!(
            "app create --developer acme --appname web --appvers 1 --imagepath file://{image} \
             --imagetype docker --deployment docker --accessports tcp:8080 --defaultflavor s"
        ));
        cli.ok(&[&["appinst", "create"][..], &KEY].concat());
        Self { cli, selvage, directory }
    }

    fn down(self) {
        self.cli.ok(&[&["appinst", "delete", "--yes"][..], &KEY].concat());
        drop(self.selvage);
        drop(self.directory);
    }

    fn instance_key(&self) -> serde_json::Value {
        let show = self.cli.json(&["appinst", "show", "-o", "json"]);
        let instance = show.as_array().and_then(|all| all.first()).unwrap_or(&show);
        instance["key"].clone()
    }

    /// The command as this user runs it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = selvage_tests::process::command();
        command.args(args).env("HOME", self.cli.home()).env_remove("XDG_CONFIG_HOME");
        command
    }
}

#[test]
fn a_command_in_an_app_by_both_ways() {
    if !can_run(&["runc"]) {
        return;
    }
    let edge = Edge::up(117);
    let cli = &edge.cli;
    for way in WAYS {
        let script = "echo out; echo err >&2; exit 7";
        let ran = cli.run(&["exec", "web", "--via", way, "--", "sh", "-c", script]);
        let got = (ran.code, ran.stdout.as_str(), ran.stderr.as_str());
        assert_eq!(got, (7, "out\n", "err\n"), "{way}");
        let lines: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
        let piped =
            cli.run_with(&["exec", "web", "--via", way, "-i", "--", "cat"], &[], Some(&lines));
        assert!((piped.code, piped.stdout == lines) == (0, true), "{way}: {}", piped.stderr);
        let odd = ["; id", "$(id)", "`id`", "a\nb", "*", "'\"\\"];
        let line = [&["exec", "web", "--via", way, "--", "printf", "[%s]"][..], &odd].concat();
        let expected: String = odd.iter().map(|word| format!("[{word}]")).collect();
        assert_eq!(cli.ok(&line), expected, "{way}");
        let logged = cli.ok(&["logs", "web", "--via", way]);
        assert_eq!(logged, "started\n", "{way}");
        let timed = cli.ok(&["logs", "web", "--via", way, "--timestamps"]);
        let (time, line) = timed.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && line == "started\n", "{timed}");
    }
    let lost = cli.run(&["exec", "web", "--", "/no/such"]);
    assert!(lost.code != 0 && lost.stderr.contains("selvage: "), "{lost:?}");
    let strange = cli.run(&["exec", "web", "--container", "a;id", "--", "ls"]);
    assert!(strange.stderr.contains("is not the name of a container"), "{strange:?}");
    let nothing = cli.run(&["exec", "wob", "--", "ls"]);
    assert!(nothing.stderr.contains("no instance of the app \"wob\""), "{nothing:?}");
    let piped = cli.run(&["exec", "web", "-t", "--", "ls"]);
    assert!(piped.stderr.contains("terminal"), "{piped:?}");

    follows(&edge);
    for client in real::pions() {
        original(&edge, &client);
    }
    browser(&edge);
    terminal(&edge);
    edge.down();
}

/// Lines that are written while a caller follows arrive there.
fn follows(edge: &Edge) {
    let mut command = edge.command(&["logs", "web", "-f", "--tail", "1"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    edge.cli.ok(&["exec", "web", "--", "sh", "-c", "echo later > /proc/1/fd/1"]);
    assert_eq!(lines.next().unwrap().unwrap(), "later");
    let pid = nix::unistd::Pid::from_raw(follower.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(follower.wait().unwrap().success(), "Ctrl-C is how it ends");
}

/// The WebRTC stack of the original's client.
fn original(edge: &Edge, pion: &Path) {
    let script = "cat /bin/busybox | wc -c; exit\n";
    let mut client = Command::new(pion)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(client.stdout.take().unwrap());
    let mut offer = String::new();
    output.read_line(&mut offer).unwrap();
    let key = edge.instance_key();
    let request = json!({ "app_inst_key": key, "command": "", "offer": offer.trim() });
    let reply = edge.cli.run_with(
        &["call", "edgeproto.ExecApi/RunCommand", "-", "-o", "json"],
        &[],
        Some(&request.to_string()),
    );
    assert_eq!(reply.code, 0, "{reply:?}");
    let reply: serde_json::Value = serde_json::from_str(&reply.stdout).unwrap();
    let answer = reply["answer"].as_str().unwrap();
    client.stdin.take().unwrap().write_all(format!("{answer}\n").as_bytes()).unwrap();
    let mut heard = String::new();
    output.read_to_string(&mut heard).unwrap();
    assert!(client.wait().unwrap().success(), "{heard}");
    let size = std::fs::metadata("/bin/busybox").unwrap().len();
    assert!(heard.contains(&format!("{size}\r\n")), "{heard}");
}

/// A page that opens the web socket of the relay.
fn browser(edge: &Edge) {
    let Some(mut browser) = real::browser("shell.mjs") else { return };
    real::must_end_ok(
        browser
            .arg(edge.selvage.endpoint())
            .arg("admin")
            .arg(edge.selvage.ready()["admin"]["password_file"].as_str().unwrap())
            .arg(edge.instance_key().to_string())
            .arg("/bin/busybox"),
    );
}

/// Runs a shell on a terminal, changes its size, types, and looks whether the
/// terminal is as it was.
const ON_A_TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
master, slave = pty.openpty()
def size(rows, columns):
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
size(41, 97)
before = termios.tcgetattr(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2): os.dup2(slave, fd)
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
def until(text):
    global seen
    end = time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < end, (text, seen)
        if select.select([master], [], [], 1)[0]: seen += os.read(master, 65536)
    seen = seen.split(text, 1)[1]
os.write(master, b"stty size\r")
until(b"41 97\r\n")
assert not termios.tcgetattr(slave)[3] & termios.ECHO, "not raw"
size(50, 132)
os.write(master, b"echo x; while test \"$(stty size)\" != '50 132'; do sleep 0.1; done; echo b'i'g\r")
until(b"big\r\n")
os.write(master, b"echo n'o'w; sleep 100\r")
until(b"now\r\n")
os.write(master, b"\x03")
until(b"^C")
until(b' # ')
if sys.argv[-1] == "relay":
    os.write(master, b"exit 5\r")
    wanted = 5
else:
    os.kill(pid, signal.SIGTERM)
    wanted = 143
end = time.monotonic() + 60
while True:
    if select.select([master], [], [], 0.05)[0]: os.read(master, 65536)
    gone, status = os.waitpid(pid, os.WNOHANG)
    if gone: break
    assert time.monotonic() < end, "does not end"
assert os.waitstatus_to_exitcode(status) == wanted, status
assert termios.tcgetattr(slave) == before, "the terminal is not as it was"
"#;

fn terminal(edge: &Edge) {
    let Some(python) = real::python() else { return };
    for way in ["direct", "relay"] {
        let program = binary();
        let mut command = Command::new(&python);
        command
            .args(["-c", ON_A_TERMINAL, program.to_str().unwrap(), "exec", "web", "--via", way])
            .env("HOME", edge.cli.home())
            .env_remove("XDG_CONFIG_HOME");
        let printed = command.output().unwrap();
        assert!(printed.status.success(), "{way}: {}", String::from_utf8_lossy(&printed.stderr));
    }
}
