//! The commands about machines against agents in this process, which answer
//! for many machines as an entry does.

mod agent;

use std::{
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
};

use agent::Agents;
use clap::{CommandFactory, Parser};
use selvage_cli::{Command, Error, Global, Io, Node, NodeCommand, Nodes, execute};

#[derive(Parser, Debug)]
#[command(name = "selvage")]
struct Whole {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    nodes: Nodes,
    #[command(subcommand)]
    command: NodeCommand,
}

struct Outcome {
    out: Vec<u8>,
    err: String,
    result: Result<(), Error>,
}

impl Outcome {
    #[track_caller]
    fn good(self) -> String {
        if let Err(error) = &self.result {
            panic!("{error:?}\n{}", self.err);
        }
        String::from_utf8(self.out).unwrap()
    }

    /// Exit code, what was printed all the same, and all words about it.
    #[track_caller]
    fn bad(self) -> (u8, String, String) {
        let error = self.result.expect_err("the command succeeded");
        let mut text = self.err.into_bytes();
        error.report(&mut text, false).unwrap();
        (error.exit_code(), String::from_utf8(self.out).unwrap(), String::from_utf8(text).unwrap())
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn run(agents: &Agents, line: &str) -> Outcome {
    let config = tempfile::tempdir().unwrap();
    let words = ["selvage"].into_iter().chain(line.split(' '));
    let whole = Whole::try_parse_from(words).unwrap();
    let global = Global { endpoint: Some(agents.endpoint.clone()), ..whole.global };
    let (out, err) = (Shared::default(), Shared::default());
    let mut io = Io {
        input: None,
        out: Box::new(out.clone()),
        err: Box::new(err.clone()),
        prompt: None,
        env: [("SELVAGE_CONFIG".to_owned(), config.path().join("c").display().to_string())].into(),
        out_is_terminal: false,
        err_is_terminal: false,
        columns: None,
    };
    let command = Command::Node(Node { nodes: whole.nodes, command: whole.command });
    let result = Box::pin(execute(command, &global, Whole::command(), &mut io)).await;
    let (out, err) = (out.0.lock().unwrap().clone(), err.0.lock().unwrap().clone());
    Outcome { out, err: String::from_utf8(err).unwrap(), result }
}

#[tokio::test]
async fn one_machine_goes_by_the_address_it_is_called_at() {
    let agents = Agents::start().await;
    assert_eq!(
        run(&agents, "memory").await.good(),
        "NODE        TOTAL   USED   FREE   SHARED   BUFFERS   CACHE   AVAILABLE\n\
         127.0.0.1   2       1      1      0        0         0       0\n"
    );
}

#[tokio::test]
async fn many_machines_are_named_with_commas_or_several_times() {
    let agents = Agents::start().await;
    let out = run(&agents, "-n a,b memory").await.good();
    assert_eq!(out, run(&agents, "memory -n a -n b").await.good());
    let nodes: Vec<&str> =
        out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(nodes, ["a", "b"]);
    run(&agents, "memory -n a --node-timeout 7s").await.good();
    assert_eq!(agents.last_timeout(), "7S");
}

#[tokio::test]
async fn a_machine_that_fails_is_warned_of_and_the_table_is_printed() {
    let agents = Agents::start().await;
    let outcome = run(&agents, "memory -n a,dead").await;
    assert_eq!(outcome.err, "warning: dead: rpc error: code = Unavailable desc = nobody there\n");
    assert_eq!(outcome.good().lines().count(), 2);
}

#[tokio::test]
async fn when_all_machines_fail_so_does_the_command() {
    let agents = Agents::start().await;
    let (code, out, err) = run(&agents, "memory -n dead").await.bad();
    assert_eq!((code, out.as_str()), (13, ""));
    assert!(err.starts_with("error: dead: rpc error: code = Unavailable desc = nobody"), "{err}");
    let (code, _, err) = run(&agents, "memory -n dead,dead2").await.bad();
    assert_eq!(code, 13);
    assert!(err.contains("warning: dead2: ") && err.contains("2 of 2 machines failed"), "{err}");
}

#[tokio::test]
async fn what_was_to_be_done_is_done_everywhere_or_is_a_failure() {
    let agents = Agents::start().await;
    for (line, named) in [
        ("reboot --yes", "Reboot a, "),
        ("shutdown -y", "Turn off a, "),
        ("reset --yes", "Wipe the configuration of a, "),
    ] {
        let done = run(&agents, &format!("{line} -n a,b")).await;
        assert_eq!(done.err, format!("{named}b\n"));
        assert_eq!(done.good(), "", "{line}");
        let (code, _, err) = run(&agents, &format!("{line} -n a,dead,b")).await.bad();
        assert_eq!(code, 13, "{line}");
        let stderr = format!("{named}dead, b\nwarning: dead: rpc error");
        assert!(err.starts_with(&stderr), "{line}: {err}");
        assert!(err.contains("error: 1 of 3 machines failed"), "{line}: {err}");
    }
    let done = run(&agents, "restart web -n a").await;
    assert_eq!(done.err, "", "one machine that was named needs no naming");
    assert_eq!(
        done.good(),
        "NODE   RESPONSE\na      Container \"web\" restarted (process 7, now 8)\n"
    );
    let (code, out, err) = run(&agents, "restart web -n a,dead,b").await.bad();
    assert_eq!((code, out.lines().count()), (13, 3));
    assert!(
        err.starts_with("restarting \"web\" on 3 machines: a, dead, b\nwarning: dead"),
        "{err}"
    );
    let (code, out, err) = run(&agents, "services ntpd restart -n a,dead").await.bad();
    assert!(err.starts_with("restarting the service \"ntpd\" on 2 machines: a, dead\n"), "{err}");
    assert_eq!(out, "NODE   RESPONSE\na      Service \"ntpd\" restarted\n");
    assert_eq!(code, 13);
    let (code, out, err) = run(&agents, "upgrade -i image:2 -n dead,a").await.bad();
    assert_eq!(code, 13);
    assert!(err.starts_with("upgrading to \"image:2\" on 2 machines: dead, a\n"), "{err}");
    assert!(out.contains("a      Upgrade request received"), "{out}");
}

/// Labels before the command and names behind it: neither is dropped, and nobody
/// is asked to do anything.
#[tokio::test]
async fn selectors_that_contradict_each_other_are_refused_and_nothing_is_sent() {
    let agents = Agents::start().await;
    let (code, out, err) = run(&agents, "-l rack=3 restart x -n rack9").await.bad();
    assert_eq!((code, out.as_str()), (3, ""));
    assert!(err.contains("-n rack9") && err.contains("-l rack=3"), "{err}");
    assert!(agents.restarted().is_none());
}

#[tokio::test]
async fn a_machine_that_takes_its_time_delays_only_its_own_row() {
    let agents = Agents::start().await;
    let outcome = run(&agents, "memory -n a,slow,mute,b").await;
    assert_eq!(agents.timeouts(), ["2S", ""], "a short look at all, a long one at the late");
    assert!(outcome.err.starts_with("waiting for slow, mute\nwarning: mute: "), "{}", outcome.err);
    let out = outcome.good();
    let nodes: Vec<&str> = out.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(nodes, ["NODE", "a", "b", "NODE", "slow"]);

    let outcome = run(&agents, "memory -n a,mute").await;
    assert!(outcome.err.starts_with("waiting for mute\nwarning: mute: "), "{}", outcome.err);
    assert_eq!(outcome.good().lines().count(), 2);
    let (code, out, err) = run(&agents, "memory -n mute,mute2").await.bad();
    assert_eq!((code, out.as_str()), (11, ""), "{err}");
    assert!(err.contains("2 of 2 machines failed"), "{err}");
    // Whoever reads one document gets one.
    let before = agents.timeouts().len();
    run(&agents, "memory -n a,slow -o json").await.good();
    assert_eq!(agents.timeouts()[before..], [""]);
}

#[tokio::test]
async fn a_container_that_is_not_found_may_be_in_another_namespace() {
    let agents = Agents::start().await;
    let (code, _, err) = run(&agents, "restart missing").await.bad();
    assert_eq!(code, 4);
    assert!(err.contains("namespace system") && err.contains("--namespace '*'"), "{err}");
    let outcome = run(&agents, "containers -n a").await;
    assert!(outcome.err.starts_with("no containers in the namespace system; "), "{}", outcome.err);
    outcome.good();
}

#[tokio::test]
async fn what_cannot_be_undone_is_asked_about() {
    let agents = Agents::start().await;
    for line in ["reboot", "shutdown", "reset"] {
        let (code, _, err) = run(&agents, line).await.bad();
        assert_eq!(code, 8, "{line}: {err}");
        assert!(err.contains("--yes"), "{err}");
    }
}

#[tokio::test]
async fn a_restart_says_what_was_asked_for() {
    let agents = Agents::start().await;
    run(&agents, "restart -k ns/pod:app --grace 30s").await.good();
    let request = agents.last_restart();
    assert_eq!((request.namespace.as_str(), request.id.as_str()), ("k8s.io", "ns/pod:app"));
    assert_eq!((request.driver, request.grace_seconds, request.signal_only), (0, 30, false));
    run(&agents, "restart -c ns/pod --signal-only").await.good();
    let request = agents.last_restart();
    assert_eq!((request.namespace.as_str(), request.driver), ("k8s.io", 1));
    assert!(request.signal_only);
    let json = run(&agents, "restart web -o json").await.good();
    assert_eq!(json, "{\"messages\":[{\"old_pid\":7,\"new_pid\":8}]}\n");
}

#[tokio::test]
async fn formats_for_machines_have_all_that_was_answered() {
    let agents = Agents::start().await;
    let outcome = run(&agents, "memory -n a,dead -o json").await;
    assert!(outcome.err.starts_with("warning: dead"));
    let value: serde_json::Value = serde_json::from_str(&outcome.good()).unwrap();
    assert_eq!(value["messages"][0]["meminfo"]["memtotal"], "2048");
    assert!(value["messages"][1]["metadata"]["error"].as_str().unwrap().contains("nobody"));
    let yaml = run(&agents, "memory -o yaml").await.good();
    assert!(yaml.starts_with("messages:\n- meminfo:\n    memtotal: "), "{yaml}");
}

#[tokio::test]
async fn logs_are_lines_again_each_with_its_machine() {
    let agents = Agents::start().await;
    let out = run(&agents, "logs web -n a,b").await.good();
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "a: first line",
            "a: second line",
            "a: unfinished",
            "b: first line",
            "b: second line",
            "b: unfinished"
        ]
    );
    let out = run(&agents, "logs web -n a --tail 2").await.good();
    assert_eq!(out, "a: second line\na: unfinished\n");
    let out = run(&agents, "logs web -n a -o json").await.good();
    assert_eq!(out.lines().next(), Some("{\"node\":\"a\",\"line\":\"first line\"}"));
    let outcome = run(&agents, "logs web -n a,dead").await;
    assert!(outcome.err.starts_with("warning: dead: "), "{}", outcome.err);
    assert_eq!(outcome.good().lines().count(), 3);
    let (code, _, err) = run(&agents, "logs missing").await.bad();
    assert_eq!(code, 4);
    assert!(err.contains("container \"missing\" not found"), "{err}");
}

#[tokio::test]
async fn records_of_the_kernel_stay_whole() {
    let agents = Agents::start().await;
    let out = run(&agents, "dmesg -n a").await.good();
    assert_eq!(out, "a: kern:    info: [t]: one\n SUBSYSTEM=x\na: kern:     err: [t]: two\n");
    let out = run(&agents, "dmesg -n a -o json --level err").await.good();
    assert_eq!(out, "{\"node\":\"a\",\"level\":\"err\"}\n");
}

#[tokio::test]
async fn a_file_comes_as_it_is() {
    let agents = Agents::start().await;
    let outcome = run(&agents, "cat /bin/x").await;
    assert!(outcome.result.is_ok());
    assert_eq!(outcome.out, [0, 159, 146, 150, b'\n', b'x']);
    let (code, _, err) = run(&agents, "cat /bin/x -n dead").await.bad();
    assert_eq!(code, 13, "{err}");
}

#[tokio::test]
async fn a_dead_runtime_is_a_warning_next_to_the_containers_of_others() {
    let agents = Agents::start().await;
    let outcome = run(&agents, "containers --namespace *").await;
    assert_eq!(
        outcome.err,
        "warning: 127.0.0.1: rpc error: code = Unavailable desc = containerd is dead\n"
    );
    assert!(outcome.good().starts_with("NODE "));
}

#[test]
fn all_namespaces_are_offered_only_where_there_may_be_many_containers() {
    let whole = Whole::command();
    for (name, offered) in
        [("containers", true), ("stats", true), ("logs", false), ("restart", false)]
    {
        let command = whole.find_subcommand(name).unwrap();
        let option = command.get_arguments().find(|one| one.get_id() == "namespace").unwrap();
        let help = option.get_help().unwrap().to_string();
        assert_eq!(help.contains("'*'"), offered, "{name}: {help}");
    }
}

#[tokio::test]
async fn this_programs_own_version_says_by_what_and_for_what_it_was_built() {
    let agents = Agents::start().await;
    let out = run(&agents, "version --client").await.good();
    assert!(out.starts_with("Client:\n\tTag:         v"), "{out}");
    assert!(out.contains("\tGo version:  rustc 1."), "{out}");
    assert!(out.contains("\tOS/Arch:     linux/") && !out.contains("x86_64"), "{out}");
}

#[tokio::test]
async fn files_are_listed_in_short_and_in_full() {
    let agents = Agents::start().await;
    let outcome = run(&agents, "ls /etc").await;
    assert!(outcome.err.contains("error reading file /etc/secret: denied"), "{}", outcome.err);
    assert_eq!(outcome.good(), ".\nhosts\n");
    assert_eq!(
        run(&agents, "ls -l /etc").await.good(),
        "MODE         SIZE(B)   LASTMOD       NAME\n\
         drwxr-xr-x   4096      Nov 14 2023   .\n\
         -rw-r--r--   12        Nov 14 2023   hosts\n"
    );
    assert_eq!(run(&agents, "ls -t f /etc").await.good(), "hosts\n");
    let many = run(&agents, "ls -t d -n a,b /etc").await.good();
    assert_eq!(many, "NODE   NAME\na      .\nb      .\n");
    assert_eq!(
        run(&agents, "ls -l -n b,a /etc").await.good(),
        "NODE   MODE         SIZE(B)   LASTMOD       NAME\n\
         b      drwxr-xr-x   4096      Nov 14 2023   .\n\
         b      -rw-r--r--   12        Nov 14 2023   hosts\n\
         a      drwxr-xr-x   4096      Nov 14 2023   .\n\
         a      -rw-r--r--   12        Nov 14 2023   hosts\n"
    );
    let json = run(&agents, "ls -t f /etc -o json").await.good();
    assert!(json.starts_with("{\"name\":\"/etc/hosts\""), "{json}");
}

#[tokio::test]
async fn copies_land_in_a_folder_and_bad_entries_do_not() {
    let agents = Agents::start().await;
    let dir = tempfile::tempdir().unwrap();
    let into = |name: &str| dir.path().join(name);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    run(&agents, &format!("cp /data {}", into("one").display())).await.good();
    assert_eq!(read(&into("one/a/file")), "content");

    let line = format!("cp /data {} -n a,b", into("many").display());
    run(&agents, &line).await.good();
    assert_eq!(read(&into("many/a/a/file")) + &read(&into("many/b/a/file")), "contentcontent");

    let (code, _, err) = run(&agents, &format!("cp /evil {}", into("evil").display())).await.bad();
    assert_eq!(code, 8);
    assert!(err.contains("warning: 127.0.0.1: ../evil is left out: its name leads out"), "{err}");
    assert_eq!(read(&into("evil/a/file")), "content");
    assert!(!into("evil").join("../evil-file").exists());

    let (code, _, err) = run(&agents, &format!("cp /half {}", into("half").display())).await.bad();
    assert_eq!(code, 7, "{err}");
    assert_eq!(read(&into("half/a/file")), "content", "what could be read is there");

    for (target, nodes, named) in
        [(into("broken").display().to_string(), "a,b", "a, b"), ("-".into(), "a", "a")]
    {
        let outcome = run(&agents, &format!("cp /broken {target} -n {nodes}")).await;
        let error = outcome.result.unwrap_err();
        let text = format!("the copy from {named} broke off: connection reset");
        assert_eq!((error.exit_code(), error.to_string()), (13, text));
    }

    let whole = run(&agents, "cp /data -").await;
    assert!(whole.result.is_ok() && whole.out == agent::archive(false));
    let (code, _, _) = run(&agents, "cp /data - -n a,b").await.bad();
    assert_eq!(code, 3);
}

#[tokio::test]
async fn a_refusal_by_the_entry_machine_is_shown_like_any_other() {
    let agents = Agents::start().await;
    let (code, _, err) = run(&agents, "containers --namespace refused").await.bad();
    assert_eq!(code, 3);
    assert!(err.starts_with("error: namespace can't be empty\n"), "{err}");
    let (code, _, err) = run(&agents, "services nothing").await.bad();
    assert_eq!(code, 4);
    assert!(err.contains("there is no service \"nothing\""), "{err}");
}

#[tokio::test]
async fn watching_ends_when_whoever_reads_is_gone() {
    struct Closed(usize);
    impl Write for Closed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.checked_sub(1) {
                Some(left) => self.0 = left,
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let agents = Agents::start().await;
    let global = Global { endpoint: Some(agents.endpoint.clone()), ..Global::default() };
    let whole = Whole::try_parse_from(["selvage", "processes", "--watch"]).unwrap();
    let config = tempfile::tempdir().unwrap();
    let mut io = Io {
        input: None,
        out: Box::new(Closed(1)),
        err: Box::new(io::sink()),
        prompt: None,
        env: [("SELVAGE_CONFIG".to_owned(), config.path().join("c").display().to_string())].into(),
        out_is_terminal: false,
        err_is_terminal: false,
        columns: None,
    };
    let command = Command::Node(Node { nodes: whole.nodes, command: whole.command });
    let result = Box::pin(execute(command, &global, Whole::command(), &mut io)).await;
    let error = result.unwrap_err();
    let mut stderr = Vec::new();
    error.report(&mut stderr, false).unwrap();
    assert_eq!((error.exit_code(), stderr.len()), (0, 0), "{error:?}");
}
