//! Processes that come and go by the thousand while they are listed.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use selvage_bench::report::Report;

use crate::agent::Agent;

/// For how long it blows.
const TIME: Duration = Duration::from_secs(10);

/// Makes processes that end at once, as fast as it goes.
const SCRIPT: &str = "while :; do for i in 1 2 3 4 5 6 7 8; do (:) & done; wait; done";

struct Storm(Vec<Child>);

impl Storm {
    fn begin() -> Result<Self> {
        let mut storm = Self(Vec::new());
        for _ in 0..4 {
            let shell = Command::new("sh").args(["-c", SCRIPT]).stdin(Stdio::null()).spawn()?;
            storm.0.push(shell);
        }
        Ok(storm)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        for shell in &mut self.0 {
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}

/// Processes that were ever made on this machine.
fn made() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    let made = text.lines().find_map(|line| line.strip_prefix("processes "));
    Ok(made.context("/proc/stat counts no processes")?.trim().parse()?)
}

/// Polls for as long as the storm blows. None may fail, and those who stay
/// must be in every answer.
pub(crate) async fn measure(agent: &Agent, report: &mut Report) -> Result<()> {
    let storm = Storm::begin()?;
    let (begun, before) = (Instant::now(), made()?);
    let own = i32::try_from(std::process::id())?;
    let mut polls = 0_u32;
    while begun.elapsed() < TIME {
        let listed = agent.processes().await.context("a poll failed in the storm")?;
        ensure!(
            listed.iter().any(|process| process.pid == own),
            "a process that stays was left out"
        );
        polls += 1;
    }
    let rate = (made()? - before) as f64 / begun.elapsed().as_secs_f64();
    drop(storm);
    report.row(
        "Processes in a fork storm",
        format!("{polls} polls, none failed"),
        format!("{rate:.0} new processes a second"),
        format!("{:.1}x of 2000 a second", rate / 2000.0),
    );
    Ok(())
}
