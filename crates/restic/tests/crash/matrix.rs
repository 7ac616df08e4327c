//! One repository lives through all of it: each point is drawn, somebody is
//! killed there, and the next one finds a sound repository and goes on.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::FileExt, process::ExitStatusExt},
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use selvage_restic::{Job, Repository, RestoreOptions, Snapshot, VerifyOptions};

use crate::{
    common::{Folder, Numbers, Restic, assert_same, has_restic, source},
    mortal::{
        CHUNK, CONNECTIONS, DONE, Fate, Moment, NOW, PACK, READY, Storage, Task, Work,
        backup_options, command, open, target,
    },
    store::Server,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 20 * MIB;
/// Number of bytes that are new in each backup.
const CHANGE: u64 = 8 * MIB;
/// One in so many points is followed by a look of stock restic at everything.
const INTERVAL: u64 = 15;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// End of a child.
enum End {
    Killed,
    /// It was faster, after so many operations.
    Done(u64),
}

struct Chain {
    folder: Folder,
    place: Storage,
    restic: Option<Restic>,
    repository: Repository,
    numbers: Numbers,
    /// Number of operations that each kind of work took when nobody was killed.
    usual: [u64; 3],
    /// Number of bytes that a backup sends that nobody interrupts.
    needed: u64,
    /// Counts of those killed and those that were faster, by kind of work.
    killed: [u64; 3],
    faster: [u64; 3],
    /// The most that was sent for a backup that was interrupted.
    most_sent: u64,
    at: String,
}

impl Chain {
    async fn begin(folder: Folder, place: Storage, restic: Restic, seed: u64) -> Self {
        let repository = open(&place, &Fate::new(None, folder.0.path())).await;
        std::fs::File::create(folder.path("disk")).unwrap().set_len(SIZE).unwrap();
        let mut chain = Self {
            folder,
            place,
            restic: has_restic().then_some(restic),
            repository,
            numbers: Numbers::new(seed),
            usual: [0; 3],
            needed: 0,
            killed: [0; 3],
            faster: [0; 3],
            most_sent: 0,
            at: "before".to_owned(),
        };
        for work in Work::ALL {
            chain.prepare(work).await;
            let End::Done(operations) = chain.run(work, None, None) else { panic!("{work:?}") };
            chain.usual[work as usize] = operations;
            if work == Work::Backup {
                chain.needed = chain.sent();
            }
        }
        assert!(chain.needed > CHANGE, "{}", chain.needed);
        // Whoever is killed has this much on its way, and it is sent again.
        let window = CONNECTIONS as u64 * u64::from(PACK + CHUNK);
        assert!(window * 20 < chain.needed, "{window} of {}", chain.needed);
        chain
    }

    fn sent(&self) -> u64 {
        let text = std::fs::read_to_string(self.folder.path("sent")).unwrap_or_default();
        text.lines().map(|line| line.parse::<u64>().unwrap()).sum()
    }

    /// Something to do for the one that will be killed.
    async fn prepare(&mut self, work: Work) {
        let _ = std::fs::remove_file(self.folder.path("sent"));
        match work {
            Work::Backup => {
                let chunk = u64::from(CHUNK);
                let at = self.numbers.below((SIZE - CHANGE) / chunk) * chunk;
                let noise = self.numbers.bytes(CHANGE as usize);
                let disk = std::fs::OpenOptions::new().write(true).open(self.folder.path("disk"));
                disk.unwrap().write_all_at(&noise, at).unwrap();
            }
            Work::Restore => {
                // Into nothing, or over what is there.
                if self.numbers.below(2) == 0 {
                    let _ = std::fs::remove_file(self.folder.path("back"));
                }
            }
            Work::Prune => {
                let mut snapshots = self.repository.snapshots().await.unwrap();
                snapshots.pop();
                let old: Vec<_> = snapshots.iter().map(|snapshot| snapshot.id).collect();
                self.repository.remove_snapshots(&old, &Job::new()).await.unwrap();
            }
        }
    }

    /// Lets a child do it, to its end or to ours.
    fn run(&self, work: Work, death: Option<(u64, Moment)>, kill: Option<Duration>) -> End {
        let folder = self.folder.0.path().to_owned();
        let task = Task { work, place: self.place.clone(), folder, death };
        let mut child = command(&task).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        if let Some(after) = kill
            && lines.any(|line| line.contains(READY))
        {
            let end = Instant::now() + after;
            while Instant::now() < end && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            let _ = child.kill();
        }
        let operations = lines.find_map(|line| line.split_once(DONE)?.1.parse().ok());
        let status = child.wait().unwrap();
        match status.signal() {
            Some(signal) => {
                assert_eq!(signal, 9, "{}", self.at);
                End::Killed
            }
            None => {
                assert!(status.success(), "{}: {status}", self.at);
                End::Done(operations.unwrap())
            }
        }
    }

    /// Returns the point at which the next one is killed: mostly at an operation, sometimes at a
    /// time.
    fn draw(&mut self, work: Work) -> (Option<(u64, Moment)>, Option<Duration>) {
        let usual = self.usual[work as usize];
        if self.numbers.below(4) == 0 {
            // Longer than most take.
            let after = Duration::from_micros(self.numbers.below(400_000));
            return (None, Some(after));
        }
        let moment = match self.numbers.below(3) {
            0 => Moment::Before,
            1 => Moment::During(self.numbers.below(3000)),
            _ => Moment::After,
        };
        (Some((1 + self.numbers.below(usual), moment)), None)
    }

    async fn point(&mut self, number: u64, seed: u64) {
        let work = Work::ALL[(number % 3) as usize];
        self.prepare(work).await;
        let (death, kill) = self.draw(work);
        self.at = format!("seed {seed}, point {number}: {work:?}, {death:?} {kill:?}");
        match self.run(work, death, kill) {
            End::Killed => self.killed[work as usize] += 1,
            End::Done(_) => self.faster[work as usize] += 1,
        }
        self.assert_sound(0).await;
        match work {
            Work::Backup => self.back_up_again().await,
            Work::Restore => self.restore_again().await,
            Work::Prune => self.prune_again().await,
        }
        if number % INTERVAL == INTERVAL - 1 {
            self.look_closely().await;
        }
    }

    async fn assert_sound(&self, read_percent: u8) {
        let verified = self.repository.verify(VerifyOptions { read_percent }, &Job::new()).await;
        assert_eq!(verified.unwrap().damages, [], "{}", self.at);
    }

    async fn look_closely(&self) {
        self.assert_sound(100).await;
        if let Some(restic) = &self.restic {
            restic.check();
        }
    }

    async fn latest(&self) -> Snapshot {
        self.repository.snapshots().await.unwrap().pop().unwrap()
    }

    async fn back_up_again(&mut self) {
        let disk = source(&self.folder.path("disk"));
        self.repository.backup(disk, backup_options(), &Job::new()).await.unwrap();
        let (sent, needed) = (self.sent(), self.needed);
        assert!(sent <= needed + needed / 20, "{}: {sent} of {needed} sent", self.at);
        self.most_sent = self.most_sent.max(sent);
        self.restore_again().await;
    }

    async fn restore_again(&self) {
        let latest = self.latest().await;
        let sink = Arc::new(target(self.folder.0.path(), SIZE));
        let options = RestoreOptions::default();
        self.repository.restore(&latest, sink, &options, &Job::new()).await.unwrap();
        assert_same(&self.folder.path("disk"), &self.folder.path("back"));
    }

    async fn prune_again(&self) {
        let done = self.repository.prune(&NOW, &Job::new()).await.unwrap();
        assert_eq!(done.unused_bytes, 0, "{}", self.at);
        self.assert_sound(0).await;
        if let Storage::Directory(path) = &self.place {
            assert_eq!(unfinished(path), Vec::<String>::new(), "{}", self.at);
        }
    }

    fn report(&self, name: &str, seed: u64) {
        let mut text = format!("crashes on {name}, seed {seed}:");
        for work in Work::ALL {
            let (killed, faster) = (self.killed[work as usize], self.faster[work as usize]);
            write!(text, " {work:?} {killed} killed, {faster} faster;").unwrap();
        }
        let again = (self.most_sent.max(self.needed) - self.needed) as f64 * 100.0;
        tell(&format!("{text} at most {:.1} % sent again", again / self.needed as f64));
        let (killed, faster) = (self.killed.iter().sum::<u64>(), self.faster.iter().sum::<u64>());
        assert!(killed > faster, "{text}");
    }
}

/// Leaves a file that somebody began to write to a directory and never finished.
fn unfinished(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "locks" {
            found.extend(unfinished(&path));
        } else if entry.file_name().to_string_lossy().contains("-tmp-") {
            found.push(path.display().to_string());
        }
    }
    found
}

async fn live_through(name: &str, folder: Folder, place: Storage, restic: Restic, usual: u64) {
    let seed = number("SELVAGE_CRASH_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    tell(&format!("crashes on {name}: SELVAGE_CRASH_SEED={seed}"));
    let mut chain = Chain::begin(folder, place, restic, seed).await;
    for number in 0..number("SELVAGE_CRASHES").unwrap_or(usual) {
        chain.point(number, seed).await;
    }
    chain.look_closely().await;
    chain.report(name, seed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_lives_through_crashes() {
    let folder = Folder::new();
    let path = folder.path("repo");
    let restic = Restic::on(&path);
    live_through("a directory", folder, Storage::Directory(path), restic, 90).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_store_lives_through_crashes() {
    let Some(server) = Server::rclone() else { return };
    let place = Storage::S3(server.endpoint());
    let restic = server.restic("crash");
    live_through("an object store", Folder::new(), place, restic, 81).await;
}
