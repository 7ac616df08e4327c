#![allow(clippy::unwrap_used, clippy::panic)]
mod keys;
mod looks;

use std::collections::VecDeque;

use prost_types::Timestamp;
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::Size,
};
use selvage_api::{
    os::{ContainerInfo, MemInfo, ProcessInfo, Stat},
    selvage::node::{CpuTime, Host, ProcessesUpdate},
};

use super::{
    model::Model,
    source::{Container, Effect, Report, Source},
    update::{Event, update},
    view,
};

fn cpu(busy: f64, idle: f64) -> CpuTime {
    CpuTime { user: busy, idle, ..CpuTime::default() }
}

/// A machine of two processors, at some second of its life.
fn host(second: i64, cpu_percent: f64) -> Report {
    let at = second as f64;
    Report::Host(Box::new(Host {
        time: Some(Timestamp { seconds: 1_000_000 + second, nanos: 0 }),
        started: Some(Timestamp { seconds: 1_000_000 - 3723, nanos: 0 }),
        name: "box".into(),
        // The first is busy for a quarter of the time, the second for all of it.
        cpus: vec![cpu(at * 0.25, at * 0.75), cpu(at, 0.0)],
        cpu_percent,
        load1: 0.52,
        load5: 0.4,
        load15: 0.3,
        memory: Some(MemInfo { memtotal: 4 << 20, memavailable: 1 << 20, ..MemInfo::default() }),
        ..Host::default()
    }))
}

fn process(pid: i32, ppid: i32, name: &str, cpu_time: f64, megabytes: u64) -> ProcessInfo {
    ProcessInfo {
        pid,
        ppid,
        state: "S".into(),
        threads: 1,
        cpu_time,
        resident_memory: megabytes << 20,
        virtual_memory: megabytes << 21,
        command: name.into(),
        executable: format!("/bin/{name}"),
        args: format!("{name} --flag"),
    }
}

fn processes(second: i64, first: bool, changed: Vec<ProcessInfo>, gone: Vec<i32>) -> Report {
    let time = Some(Timestamp { seconds: second, nanos: 0 });
    Report::Processes { first, update: ProcessesUpdate { metadata: None, time, changed, gone } }
}

fn container(id: &str, pod: &str, status: &str, stat: Option<(f64, u64)>) -> Container {
    let stat = stat.map(|(cpu_percent, memory_usage)| Stat {
        id: id.into(),
        cpu_percent,
        memory_usage,
        ..Stat::default()
    });
    let info = ContainerInfo {
        namespace: "k8s.io".into(),
        id: id.into(),
        pod_id: pod.into(),
        image: "busybox:1".into(),
        status: status.into(),
        ..ContainerInfo::default()
    };
    Container { info, driver: 0, stat }
}

/// Two machines, one of them dead, with a little of everything.
fn model(width: u16, height: u16) -> Model {
    let mut model = Model::new(vec!["rack1".into(), "rack2".into()], false);
    model.size = Size::new(width, height);
    let news = [
        host(0, 0.0),
        host(1, 62.5),
        processes(
            1,
            true,
            vec![
                process(1, 0, "init", 1.0, 8),
                process(20, 1, "sshd", 0.5, 4),
                process(21, 20, "bash", 0.25, 2),
                process(30, 1, "registry", 9.0, 64),
            ],
            vec![],
        ),
        processes(
            2,
            false,
            vec![process(30, 1, "registry", 9.75, 64), process(21, 20, "bash", 0.5, 2)],
            vec![],
        ),
        Report::Containers(vec![
            container("web/pod", "web/pod", "RUNNING", None),
            container("web/pod:nginx", "web/pod", "RUNNING", Some((12.5, 64 << 20))),
        ]),
        Report::Kernel("kern:    info: [2026-01-01T00:00:00Z]: booted\n SUBSYSTEM=x\n".into()),
        Report::Kernel("kern:     err: [2026-01-01T00:00:01Z]: disk\x1b[2J broke\n".into()),
    ];
    for report in news {
        update(&mut model, Event::Report(0, Box::new(report)));
    }
    let why = Report::Failed("nobody answers at rack2".into());
    update(&mut model, Event::Report(1, Box::new(why)));
    model
}

fn key(model: &mut Model, code: KeyCode) -> Option<Effect> {
    update(model, Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn press(model: &mut Model, keys: &str) {
    for letter in keys.chars() {
        assert_eq!(key(model, KeyCode::Char(letter)), None);
    }
}

/// The screen as text, blanks at the ends of lines left out.
fn shown(model: &Model) -> String {
    let backend = TestBackend::new(model.size.width, model.size.height);
    let mut terminal = Terminal::new(backend).unwrap();
    terminal.draw(|frame| view::draw(frame, model)).unwrap();
    text(terminal.backend())
}

fn text(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let width = usize::from(buffer.area.width);
    let lines = buffer.content().chunks(width.max(1)).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// News that was written down before; then silence.
struct Script {
    news: VecDeque<(usize, Report)>,
    wishes: std::sync::Arc<std::sync::Mutex<Vec<Effect>>>,
}

impl Source for Script {
    async fn next(&mut self) -> Option<(usize, Report)> {
        match self.news.pop_front() {
            Some(news) => Some(news),
            None => std::future::pending().await,
        }
    }

    fn act(&mut self, effect: Effect) {
        self.wishes.lock().unwrap().push(effect);
    }
}

#[tokio::test]
async fn the_loop_shows_news_does_wishes_and_ends() {
    let wishes = std::sync::Arc::default();
    let news = [
        (0, host(1, 50.0)),
        (0, Report::Containers(vec![container("web", "web", "RUNNING", None)])),
        (1, Report::Failed("gone".into())),
    ];
    let mut source = Script { news: news.into(), wishes: std::sync::Arc::clone(&wishes) };
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    let (sender, input) = tokio::sync::mpsc::channel(16);
    let typist = tokio::spawn(async move {
        let press = |code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        // The news of a scripted source is there at once; keys come after it.
        while sender.capacity() > 0 && !sender.is_closed() {
            tokio::task::yield_now().await;
            let wished: bool = !wishes.lock().unwrap().is_empty();
            let keys = [KeyCode::Tab, KeyCode::Char('r'), KeyCode::Char('y')];
            if wished {
                sender.send(press(KeyCode::Char('q'))).await.ok();
                break;
            }
            for code in keys {
                sender.send(press(code)).await.ok();
            }
        }
        let done: Vec<Effect> = wishes.lock().unwrap().clone();
        done
    });
    let mut model = Model::new(vec!["a".into(), "b".into()], false);
    let left = super::run_on(&mut terminal, &mut model, &mut source, input).await.unwrap();
    assert_eq!(left, None);
    let done = typist.await.unwrap();
    let wish = Effect::Restart { node: 0, namespace: "k8s.io".into(), id: "web".into(), driver: 0 };
    assert!(done.contains(&wish), "{done:?}");
    let screen = text(terminal.backend());
    assert!(screen.contains("1 down") && screen.contains("web"), "{screen}");
}

#[tokio::test]
async fn a_keyboard_that_is_gone_ends_it() {
    let mut source = Script { news: VecDeque::new(), wishes: std::sync::Arc::default() };
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let (sender, input) = tokio::sync::mpsc::channel(1);
    drop(sender);
    let mut model = Model::new(vec!["a".into()], false);
    super::run_on(&mut terminal, &mut model, &mut source, input).await.unwrap();
}

/// The screen is left with all that it knows, for it comes back.
#[tokio::test]
async fn a_shell_takes_the_terminal_for_a_while() {
    let mut source = Script { news: VecDeque::new(), wishes: std::sync::Arc::default() };
    let mut terminal = Terminal::new(TestBackend::new(100, 40)).unwrap();
    let mut model = model(100, 40);
    let (sender, input) = tokio::sync::mpsc::channel(16);
    for code in [KeyCode::Char('s'), KeyCode::Tab, KeyCode::Down, KeyCode::Char('s')] {
        sender.send(Event::Key(KeyEvent::new(code, KeyModifiers::NONE))).await.unwrap();
    }
    let left = super::run_on(&mut terminal, &mut model, &mut source, input).await.unwrap();
    assert_eq!(left.as_deref(), Some("web/pod:nginx"), "of the pane of containers alone");
    assert!(!model.over);
    let (sender, input) = tokio::sync::mpsc::channel(16);
    sender.send(Event::Key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE))).await.unwrap();
    let left = super::run_on(&mut terminal, &mut model, &mut source, input).await.unwrap();
    assert_eq!(left, None);
    assert!(text(terminal.backend()).contains("nginx"));
    assert!(source.wishes.lock().unwrap().is_empty());
}
