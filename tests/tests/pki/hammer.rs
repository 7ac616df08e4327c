//! Calls that never end while a test goes on: each must be answered.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use selvage_tests::{
    Client, Selvage,
    process::{Cli, Printed, wait_for},
};

use crate::lab::Lab;

/// Callers, and whom they call.
const WAYS: [&str; 3] = ["people to the controller", "through it to a machine", "to the machine"];

struct Shared {
    stop: AtomicBool,
    answered: [AtomicUsize; WAYS.len()],
    refused: Mutex<Vec<String>>,
    /// Authorities that the callers believe, PEM.
    ca: Mutex<String>,
    token: String,
    controller: String,
    machine: String,
}

/// Callers, each on new connections for every call.
pub(crate) struct Hammer {
    shared: Arc<Shared>,
    callers: Vec<JoinHandle<()>>,
}

impl Hammer {
    pub(crate) async fn start(lab: &Lab, node: &Selvage) -> Self {
        let token = Client::admin(lab.controller()).await.token.unwrap();
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            answered: Default::default(),
            refused: Mutex::default(),
            ca: Mutex::new(lab.controller().ca().unwrap()),
            token,
            controller: lab.controller().endpoint().to_owned(),
            machine: node.endpoint().to_owned(),
        });
        let caller = |way: usize| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.hammer(way))
        };
        Self { callers: (0..WAYS.len()).map(caller).collect(), shared }
    }

    /// Waits until each caller was answered so many times more.
    pub(crate) fn rounds(&self, count: usize) {
        let now = || self.shared.answered.each_ref().map(|one| one.load(Ordering::SeqCst));
        let before = now();
        wait_for("calls to be answered", || {
            self.check();
            let more = now().iter().zip(before).all(|(now, before)| *now >= before + count);
            more.then_some(())
        });
    }

    /// Callers believe these from their next call on.
    pub(crate) fn believe(&self, ca: &str) {
        ca.clone_into(&mut self.shared.ca.lock().unwrap());
    }

    fn check(&self) {
        let refused = self.shared.refused.lock().unwrap();
        assert!(refused.is_empty(), "{refused:#?}");
    }

    pub(crate) fn stop(mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for caller in self.callers.drain(..) {
            caller.join().unwrap();
        }
        self.check();
    }
}

impl Drop for Hammer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn hammer(&self, way: usize) {
        let cli = Cli::new();
        let ca = cli.home().join("ca.crt");
        while !self.stop.load(Ordering::SeqCst) {
            std::fs::write(&ca, self.ca.lock().unwrap().as_bytes()).unwrap();
            let printed = self.call(way, &cli, ca.to_str().unwrap());
            if printed.code == 0 {
                self.answered[way].fetch_add(1, Ordering::SeqCst);
            } else {
                let printed_line = format!("{}: {printed:?}", WAYS[way]);
                self.refused.lock().unwrap().push(printed_line);
            }
        }
    }

    fn call(&self, way: usize, cli: &Cli, ca: &str) -> Printed {
        let controller = ["--endpoint", &self.controller, "--ca", ca];
        let machine = ["--endpoint", &self.machine, "--ca", ca];
        let line = match way {
            0 => [&controller[..], &["machine", "list"]].concat(),
            1 => [&controller[..], &["node", "memory", "-n", "a"]].concat(),
            _ => [&machine[..], &["node", "memory"]].concat(),
        };
        cli.run_with(&line, &[("SELVAGE_TOKEN", &self.token)], None)
    }
}
