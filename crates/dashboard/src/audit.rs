//! Audit log: lines are kept on disk and found again.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use prost::Message;
use selvage_api::selvage::dashboard::{AuditLine, ListAuditRequest, ListAuditResponse};
use selvage_kit::telemetry;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    journal::{self, Journal, Limits},
    stamp, unstamp,
};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;
/// Most lines that one call looks at: a search that finds little goes on with
/// the next page.
const MAX_SCANNED: usize = 100_000;
/// Lines kept in memory where there is no disk for them.
const MAX_IN_MEMORY: usize = 10_000;
/// Interval at which lines are synced to the disk.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The lines.
pub(crate) struct Audit {
    days: u32,
    lines: Mutex<Lines>,
}

enum Lines {
    Memory(VecDeque<AuditLine>),
    Disk { journal: Journal, folder: PathBuf, failed: bool },
}

impl Audit {
    /// Keeps lines for so many days in a folder, or the newest in memory.
    pub(crate) fn open(folder: Option<&Path>, days: u32) -> Self {
        let limits = Limits {
            file_bytes: 1 << 20,
            total_bytes: 1 << 30,
            keep: Duration::from_secs(u64::from(days) * 86_400),
        };
        let opened = folder.map(|folder| (folder, Journal::open(folder, limits)));
        let lines = match opened {
            Some((folder, Ok(journal))) => {
                Lines::Disk { journal, folder: folder.to_owned(), failed: false }
            }
            Some((folder, Err(error))) => {
                let folder = folder.display();
                tracing::warn!(%folder, %error, "audit lines are kept until the next restart only");
                Lines::Memory(VecDeque::new())
            }
            None => Lines::Memory(VecDeque::new()),
        };
        Self { days, lines: Mutex::new(lines) }
    }

    pub(crate) fn days(&self) -> u32 {
        self.days
    }

    /// Keeps what comes until told to stop.
    pub(crate) async fn run(
        self: Arc<Self>,
        mut lines: mpsc::Receiver<telemetry::AuditLine>,
        stop: CancellationToken,
    ) {
        let mut batch = Vec::new();
        loop {
            let received = stop.run_until_cancelled(lines.recv_many(&mut batch, 1000)).await;
            let ends = received.is_none_or(|count| count == 0);
            while let Ok(line) = lines.try_recv() {
                batch.push(line);
            }
            let taken = std::mem::take(&mut batch);
            let audit = Arc::clone(&self);
            let written = tokio::task::spawn_blocking(move || audit.keep(taken)).await;
            if let Err(error) = written {
                tracing::error!(%error, "audit lines were not kept");
            }
            if ends {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(SYNC_INTERVAL) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    fn keep(&self, fresh: Vec<telemetry::AuditLine>) {
        let mut lines = self.lines.lock();
        for line in fresh {
            if line.lost > 0 {
                tracing::warn!(lost = line.lost, "audit lines were lost: there were too many");
            }
            lines.push(described(line));
        }
        lines.sync();
    }

    /// Number of lines, about.
    pub(crate) fn count(&self) -> u64 {
        match &*self.lines.lock() {
            Lines::Memory(lines) => lines.len() as u64,
            Lines::Disk { folder, .. } => {
                let files = journal::files(folder).unwrap_or_default();
                let read = |path: &PathBuf| journal::read(path).map_or(0, |records| records.len());
                files.iter().map(|(_, path)| read(path) as u64).sum()
            }
        }
    }

    /// The lines that a caller asks for. `own` is the only name whose lines a
    /// caller may see who is no admin.
    pub(crate) fn list(
        &self,
        request: &ListAuditRequest,
        own: Option<&str>,
    ) -> Result<ListAuditResponse, Status> {
        let filter = Filter::new(request, own)?;
        let behind = position(&request.page_token)?;
        let folder = match &*self.lines.lock() {
            Lines::Memory(lines) => {
                let numbered = lines.iter().cloned().enumerate().rev();
                return Ok(filter.page(numbered.map(|(at, line)| ((0, at), line)), behind));
            }
            Lines::Disk { folder, .. } => folder.clone(),
        };
        let files = journal::files(&folder).map_err(|error| unreadable(&error))?;
        let newest_first = files.into_iter().rev();
        let wanted =
            newest_first.filter(|(number, _)| behind.is_none_or(|(file, _)| *number <= file));
        let lines = wanted.flat_map(|(number, path)| {
            let records = journal::read(&path).unwrap_or_default();
            let decoded = records.into_iter().enumerate().rev();
            decoded.filter_map(move |(at, record)| {
                Some(((number, at), AuditLine::decode(record.as_slice()).ok()?))
            })
        });
        Ok(filter.page(lines, behind))
    }
}

fn unreadable(error: &io::Error) -> Status {
    tracing::error!(%error, "audit lines cannot be read");
    Status::internal("audit lines cannot be read: the server's log has the details")
}

impl Lines {
    fn push(&mut self, line: AuditLine) {
        match self {
            Self::Memory(lines) => {
                lines.push_back(line);
                while lines.len() > MAX_IN_MEMORY {
                    lines.pop_front();
                }
            }
            Self::Disk { journal, failed, .. } => {
                let written = journal.append(&line.encode_to_vec());
                if let (Err(error), false) = (&written, *failed) {
                    tracing::error!(%error, "audit lines cannot be kept on the disk");
                }
                *failed = written.is_err();
            }
        }
    }

    fn sync(&mut self) {
        if let Self::Disk { journal, failed, .. } = self
            && let Err(error) = journal.sync()
            && !std::mem::replace(failed, true)
        {
            tracing::error!(%error, "audit lines cannot be kept on the disk");
        }
    }
}

/// A line of the log as callers see it.
fn described(line: telemetry::AuditLine) -> AuditLine {
    let mut fields = line.fields;
    let mut take = |names: &[&'static str]| {
        names.iter().find_map(|name| fields.remove(name)).unwrap_or_default()
    };
    let who = take(&["who", "by", "username"]);
    let method = take(&["method", "action"]);
    let why = take(&["why", "reason"]);
    let request = take(&["request", "subject"]);
    let request_id = take(&["request_id"]);
    let (peer, protocol, code) = (take(&["peer"]), take(&["protocol"]), take(&["code"]));
    let refused = line.message.contains("refused");
    let code = match (code.as_str(), refused) {
        ("", false) => "OK".to_owned(),
        ("", true) => "PERMISSION_DENIED".to_owned(),
        _ => upper(&code),
    };
    let outcome = match (refused, code.as_str()) {
        (true, _) => "refused",
        (false, "OK") => "ok",
        (false, _) => "failed",
    };
    AuditLine {
        id: format!("{:016}", line.time.as_microsecond()),
        time: Some(stamp(line.time)),
        who,
        peer,
        protocol,
        method,
        code,
        request,
        why,
        outcome: outcome.into(),
        request_id,
    }
}

/// `NotFound` as `NOT_FOUND`.
fn upper(code: &str) -> String {
    let mut upper = String::new();
    let letters: Vec<char> = code.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let after_small = at > 0 && letters[at - 1].is_lowercase();
        if letter.is_uppercase() && after_small {
            upper.push('_');
        }
        upper.extend(letter.to_uppercase());
    }
    upper
}

/// End of a page: file and record.
type Position = (u64, usize);

fn position(token: &str) -> Result<Option<Position>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed = token.split_once('-').and_then(|(file, record)| {
        Some((file.parse::<u64>().ok()?, record.parse::<usize>().ok()?))
    });
    parsed.map(Some).ok_or_else(|| Status::invalid_argument("page_token: not one of ours"))
}

struct Filter {
    own: Option<String>,
    who: String,
    method: String,
    text: String,
    outcome: String,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    page: usize,
}

impl Filter {
    fn new(request: &ListAuditRequest, own: Option<&str>) -> Result<Self, Status> {
        if !matches!(request.outcome.as_str(), "" | "ok" | "failed" | "refused") {
            return Err(Status::invalid_argument("outcome: must be ok, failed or refused"));
        }
        let time = |field: &str, given: Option<prost_types::Timestamp>| match given {
            None => Ok(None),
            Some(given) => unstamp(given)
                .map(Some)
                .ok_or_else(|| Status::invalid_argument(format!("{field}: no time"))),
        };
        let page = match request.page_size {
            0 => DEFAULT_PAGE,
            size => usize::try_from(size).unwrap_or(MAX_PAGE).min(MAX_PAGE),
        };
        Ok(Self {
            own: own.map(str::to_owned),
            who: request.who.clone(),
            method: request.method.to_lowercase(),
            text: request.text.to_lowercase(),
            outcome: request.outcome.clone(),
            since: time("since", request.since)?,
            until: time("until", request.until)?,
            page,
        })
    }

    fn fits(&self, line: &AuditLine) -> bool {
        let time = line.time.and_then(unstamp).unwrap_or_default();
        let contains = |text: &str| text.to_lowercase().contains(&self.text);
        self.own.as_ref().is_none_or(|own| *own == line.who)
            && (self.who.is_empty() || self.who == line.who)
            && line.method.to_lowercase().contains(&self.method)
            && (self.outcome.is_empty() || self.outcome == line.outcome)
            && self.until.is_none_or(|until| time <= until)
            && (self.text.is_empty()
                || [&line.request, &line.why, &line.request_id]
                    .into_iter()
                    .any(|text| contains(text)))
    }

    fn is_before(&self, line: &AuditLine) -> bool {
        let time = line.time.and_then(unstamp).unwrap_or_default();
        self.since.is_some_and(|since| time < since)
    }

    /// A page of lines that come newest first.
    fn page(
        &self,
        lines: impl Iterator<Item = (Position, AuditLine)>,
        behind: Option<Position>,
    ) -> ListAuditResponse {
        let mut response = ListAuditResponse::default();
        let mut last = None;
        let rest = lines.filter(|(at, _)| behind.is_none_or(|behind| *at < behind));
        for (looked_at, (at, line)) in rest.enumerate() {
            if self.is_before(&line) {
                return response;
            }
            if response.lines.len() >= self.page || looked_at >= MAX_SCANNED {
                let (file, record) = last.unwrap_or(at);
                response.next_page_token = format!("{file}-{record}");
                return response;
            }
            last = Some(at);
            if self.fits(&line) {
                response.lines.push(line);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    fn line(number: i64, who: &str, code: &str) -> telemetry::AuditLine {
        let fields = [
            ("who", who),
            ("method", "edgeproto.AppApi/CreateApp"),
            ("code", code),
            ("request", "{\"key\":{\"name\":\"<img onerror=x>\"}}"),
            ("request_id", &format!("id-{number}")),
        ];
        telemetry::AuditLine {
            time: Timestamp::from_second(1_800_000_000 + number).unwrap(),
            message: "call".into(),
            fields: fields.map(|(name, value)| (name, value.to_owned())).into_iter().collect(),
            lost: 0,
        }
    }

    fn listed(audit: &Audit, request: &ListAuditRequest, own: Option<&str>) -> Vec<AuditLine> {
        let mut request = request.clone();
        let mut all = Vec::new();
        loop {
            let page = audit.list(&request, own).unwrap();
            all.extend(page.lines);
            if page.next_page_token.is_empty() {
                return all;
            }
            request.page_token = page.next_page_token;
        }
    }

    #[test]
    fn lines_are_found_page_by_page_also_after_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(Some(folder.path()), 90);
        audit.keep((0..250).map(|number| line(number, "ann", "Ok")).collect());
        drop(audit);
        let audit = Audit::open(Some(folder.path()), 90);
        audit.keep((250..300).map(|number| line(number, "bob", "NotFound")).collect());
        assert_eq!(audit.count(), 300);
        let small = ListAuditRequest { page_size: 7, ..ListAuditRequest::default() };
        let all = listed(&audit, &small, None);
        assert_eq!(all.len(), 300);
        assert!(all.is_sorted_by(|a, b| a.id >= b.id), "newest first");
        assert_eq!((all[0].who.as_str(), all[0].code.as_str()), ("bob", "NOT_FOUND"));
        assert_eq!(all[0].outcome, "failed");
        let failed = ListAuditRequest { outcome: "failed".into(), ..ListAuditRequest::default() };
        assert_eq!(listed(&audit, &failed, None).len(), 50);
        let named = ListAuditRequest { text: "<IMG".into(), ..ListAuditRequest::default() };
        assert_eq!(listed(&audit, &named, None).len(), 300);
        let reported = ListAuditRequest { text: "ID-299".into(), ..ListAuditRequest::default() };
        assert_eq!(listed(&audit, &reported, None)[0].request_id, "id-299");
        let since = Some(stamp(Timestamp::from_second(1_800_000_290).unwrap()));
        let late = ListAuditRequest { since, ..ListAuditRequest::default() };
        assert_eq!(listed(&audit, &late, None).len(), 10);
    }

    #[test]
    fn whoever_is_no_admin_sees_their_own_lines() {
        let audit = Audit::open(None, 90);
        audit.keep(vec![line(1, "ann", "Ok"), line(2, "bob", "Ok")]);
        let all = ListAuditRequest::default();
        assert_eq!(listed(&audit, &all, Some("ann")).len(), 1);
        let other = ListAuditRequest { who: "bob".into(), ..ListAuditRequest::default() };
        assert!(listed(&audit, &other, Some("ann")).is_empty());
    }

    #[test]
    fn refusals_and_logins_are_distinguished() {
        let mut refused = line(1, "eve", "PERMISSION_DENIED");
        refused.message = "refused".into();
        refused.fields.insert("why", "not authorized".into());
        let refused = described(refused);
        assert_eq!((refused.outcome.as_str(), refused.why.as_str()), ("refused", "not authorized"));
        assert_eq!(refused.code, "PERMISSION_DENIED");
        let login = telemetry::AuditLine {
            time: Timestamp::UNIX_EPOCH,
            message: "logged in".into(),
            fields: BTreeMap::from([("action", "login".into()), ("username", "ann".into())]),
            lost: 0,
        };
        let login = described(login);
        assert_eq!((login.method.as_str(), login.who.as_str()), ("login", "ann"));
        assert_eq!((login.outcome.as_str(), login.code.as_str()), ("ok", "OK"));
    }

    #[test]
    fn bad_questions_name_the_field() {
        let audit = Audit::open(None, 90);
        let bad = ListAuditRequest { outcome: "maybe".into(), ..ListAuditRequest::default() };
        assert!(audit.list(&bad, None).unwrap_err().message().starts_with("outcome: "));
        let bad = ListAuditRequest { page_token: "../1".into(), ..ListAuditRequest::default() };
        assert!(audit.list(&bad, None).unwrap_err().message().starts_with("page_token: "));
    }
}
