//! State of the machines, and of the view.

use std::collections::{BTreeMap, VecDeque};

use ratatui::layout::Size;
use selvage_api::{
    os::ProcessInfo,
    selvage::node::{CpuTime, Host, ProcessesUpdate},
};

use super::source::{Container, Effect};

/// Points of the small graphs.
const HISTORY: usize = 240;
/// Lines of a kernel's log that are kept.
const KERNEL: usize = 1000;

/// The whole screen's state.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) machines: Vec<Machine>,
    /// Which of them is looked at.
    pub(crate) at: usize,
    pub(crate) focus: Pane,
    /// True if the pane in focus has the screen to itself.
    pub(crate) zoomed: bool,
    pub(crate) sort: Sort,
    pub(crate) tree: bool,
    pub(crate) filter: String,
    /// True if keys go into the filter.
    pub(crate) typing: bool,
    pub(crate) process_at: usize,
    pub(crate) container_at: usize,
    /// Number of lines by which the kernel's log is scrolled back.
    pub(crate) kernel_back: usize,
    pub(crate) help: bool,
    pub(crate) question: Option<Question>,
    pub(crate) notice: Option<Notice>,
    /// The log that is followed, over everything else.
    pub(crate) log: Option<LogView>,
    pub(crate) colour: bool,
    pub(crate) size: Size,
    pub(crate) over: bool,
}

impl Model {
    pub(crate) fn new(names: Vec<String>, colour: bool) -> Self {
        Self {
            machines: names.into_iter().map(Machine::new).collect(),
            at: 0,
            focus: Pane::Processes,
            zoomed: false,
            sort: Sort::Cpu,
            tree: false,
            filter: String::new(),
            typing: false,
            process_at: 0,
            container_at: 0,
            kernel_back: 0,
            help: false,
            question: None,
            notice: None,
            log: None,
            colour,
            size: Size::default(),
            over: false,
        }
    }

    /// The machine that is looked at.
    pub(crate) fn machine(&self) -> Option<&Machine> {
        self.machines.get(self.at)
    }
}

/// Parts of the screen that can be in focus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pane {
    Machines,
    Processes,
    Containers,
    Kernel,
}

impl Pane {
    pub(crate) const ALL: [Self; 4] =
        [Self::Machines, Self::Processes, Self::Containers, Self::Kernel];

    /// The one so many further on.
    pub(crate) fn step(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|pane| *pane == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}

/// Order of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Cpu,
    Memory,
    Pid,
    Name,
}

impl Sort {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pid => "pid",
            Self::Name => "name",
        }
    }
}

/// Something that is done only when the person says yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) effect: Effect,
}

/// The last line of the screen, for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) text: String,
    pub(crate) bad: bool,
}

/// The log of one container.
#[derive(Debug)]
pub(crate) struct LogView {
    pub(crate) node: usize,
    pub(crate) id: String,
    pub(crate) lines: VecDeque<String>,
}

impl LogView {
    pub(crate) fn add(&mut self, line: &str) {
        remember(&mut self.lines, crate::error::printable(line), KERNEL);
    }
}

/// Reachability of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Alive,
    Dead(String),
}

/// One machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) host: Option<Box<Host>>,
    /// Load of each processor, 0 to 1.
    pub(crate) cores: Vec<f64>,
    /// Load of the machine, in percent, the newest last.
    pub(crate) cpu: VecDeque<u64>,
    /// Use of its memory, in percent.
    pub(crate) memory: VecDeque<u64>,
    pub(crate) processes: BTreeMap<i32, Process>,
    /// When processes were last told, in seconds.
    measured: f64,
    pub(crate) containers: Vec<Container>,
    /// Why its containers are not known.
    pub(crate) containers_problem: Option<String>,
    pub(crate) kernel: VecDeque<String>,
}

/// A process, and how busy it is in percent of one processor.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) info: ProcessInfo,
    pub(crate) cpu: f64,
}

impl Machine {
    fn new(name: String) -> Self {
        Self {
            name,
            state: State::Waiting,
            host: None,
            cores: Vec::new(),
            cpu: VecDeque::new(),
            memory: VecDeque::new(),
            processes: BTreeMap::new(),
            measured: 0.0,
            containers: Vec::new(),
            containers_problem: None,
            kernel: VecDeque::new(),
        }
    }

    /// Share of its memory that is not available, 0 to 1.
    pub(crate) fn memory_used(&self) -> f64 {
        let memory = self.host.as_ref().and_then(|host| host.memory.as_ref());
        memory.map_or(0.0, |memory| {
            let used = memory.memtotal.saturating_sub(memory.memavailable);
            if memory.memtotal == 0 { 0.0 } else { used as f64 / memory.memtotal as f64 }
        })
    }

    /// Load of all processors, 0 to 1.
    pub(crate) fn busy(&self) -> f64 {
        self.host.as_ref().map_or(0.0, |host| (host.cpu_percent / 100.0).clamp(0.0, 1.0))
    }

    pub(crate) fn set_host(&mut self, host: Box<Host>) {
        let before = self.host.as_ref().map_or(&[][..], |host| &host.cpus);
        self.cores = if before.len() == host.cpus.len() {
            before.iter().zip(&host.cpus).map(|(before, now)| busy_between(before, now)).collect()
        } else {
            vec![0.0; host.cpus.len()]
        };
        self.host = Some(host);
        let (cpu, memory) = (self.busy(), self.memory_used());
        remember(&mut self.cpu, (cpu * 100.0).round() as u64, HISTORY);
        remember(&mut self.memory, (memory * 100.0).round() as u64, HISTORY);
    }

    pub(crate) fn set_processes(&mut self, first: bool, update: ProcessesUpdate) {
        let now = update
            .time
            .as_ref()
            .map_or(0.0, |time| time.seconds as f64 + f64::from(time.nanos) * 1e-9);
        let elapsed = now - self.measured;
        self.measured = now;
        let before = if first { std::mem::take(&mut self.processes) } else { BTreeMap::new() };
        for process in self.processes.values_mut() {
            process.cpu = 0.0;
        }
        for pid in update.gone {
            self.processes.remove(&pid);
        }
        for info in update.changed {
            let known = before.get(&info.pid).or_else(|| self.processes.get(&info.pid));
            let used = known.map_or(0.0, |known| info.cpu_time - known.info.cpu_time);
            // A pid in use again has used less than the one before it.
            let cpu = if elapsed > 0.0 && used > 0.0 { used / elapsed * 100.0 } else { 0.0 };
            self.processes.insert(info.pid, Process { info, cpu });
        }
    }

    pub(crate) fn add_kernel(&mut self, record: &str) {
        for line in record.lines() {
            remember(&mut self.kernel, crate::error::printable(line), KERNEL);
        }
    }
}

fn remember<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() == most {
        list.pop_front();
    }
    list.push_back(item);
}

/// Load of a processor between two readings, 0 to 1.
fn busy_between(before: &CpuTime, now: &CpuTime) -> f64 {
    let idle = |time: &CpuTime| time.idle + time.iowait;
    let all = |time: &CpuTime| {
        let CpuTime { user, nice, system, irq, softirq, steal, .. } = time;
        user + nice + system + irq + softirq + steal + idle(time)
    };
    let total = all(now) - all(before);
    let rest = idle(now) - idle(before);
    if total > 0.0 { ((total - rest) / total).clamp(0.0, 1.0) } else { 0.0 }
}
