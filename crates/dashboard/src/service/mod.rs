//! `selvage.dashboard`.

mod process;
mod watch;

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use selvage_api::selvage::dashboard::{
    GetOverviewRequest, GetProcessRequest, GetSeriesRequest, GetSeriesResponse, ListAuditRequest,
    ListAuditResponse, ListEventsRequest, ListEventsResponse, ListSeriesRequest,
    ListSeriesResponse, Overview, Process, SeriesInfo, WatchOverviewRequest,
    dashboard_service_server::{DashboardService, DashboardServiceServer},
};
use selvage_kit::{
    identity::{Identity, Role},
    tasks::Tasks,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, metadata::MetadataValue};

use crate::{
    audit::Audit,
    board::{Board, SourceState},
    facts::Section,
    scope::Scope,
    series::{self, Key, METRICS, Query, Series},
    snapshot, unstamp,
};

pub(crate) use self::process::Started;
use self::{process::describe, watch::Updates};

const USUAL_EVENTS: usize = 200;
const MOST_EVENTS: usize = 2000;
/// Views that are remembered for callers who see the same.
const MOST_VIEWS: usize = 256;

/// Names of the metadata that tell how old an answer is.
const AGE: &str = "x-data-age-ms";
const STALE: &str = "x-data-stale";

/// Sources of a section that is there.
fn fed(all: &[SourceState], section: Section) -> Vec<&SourceState> {
    all.iter().filter(|state| state.section == section && !state.absent).collect()
}

/// Refuses while a section has not answered since the start: for as long as it may still
/// be on its way, and of those that are decisive, without which the answer would be about
/// something else, until it answers.
pub(crate) fn arrived(
    board: &Board,
    sections: &[Section],
    decisive: &[Section],
) -> Result<(), Status> {
    let all = board.sources();
    for section in sections.iter().chain(decisive) {
        let fed = fed(&all, *section);
        if fed.is_empty() || told(&fed).is_some() {
            continue;
        }
        let is_under_way = fed.iter().any(|state| !state.failing());
        if is_under_way || decisive.contains(section) {
            let name = section.name();
            let text = format!("the source of {name} has not answered yet: try again in a moment");
            return Err(Status::unavailable(text));
        }
    }
    Ok(())
}

/// An answer made of these sections, with the age of the oldest. Sections that are not
/// there at all are no reason to refuse; nothing known yet is.
pub(crate) fn aged<T>(
    board: &Board,
    sections: &[Section],
    message: T,
) -> Result<Response<T>, Status> {
    let all = board.sources();
    let mut known: Vec<&SourceState> = Vec::new();
    let (mut pending, mut late) = (false, false);
    for section in sections {
        let fed = fed(&all, *section);
        if let Some(state) = told(&fed) {
            known.push(state);
        } else if !fed.is_empty() {
            pending = true;
            late |= fed.iter().all(|state| state.stale);
        }
    }
    if known.is_empty() && pending {
        return Err(Status::unavailable("no source has answered yet: try again in a moment"));
    }
    let age = known.iter().map(|state| state.age).max().unwrap_or_default();
    let stale = late || known.iter().any(|state| state.stale);
    let mut response = Response::new(message);
    let metadata = response.metadata_mut();
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    metadata.insert(AGE, MetadataValue::from(millis));
    metadata.insert(STALE, MetadataValue::from_static(if stale { "true" } else { "false" }));
    Ok(response)
}

/// The source whose data of a section is shown.
fn told<'a>(fed: &[&'a SourceState]) -> Option<&'a SourceState> {
    let mut answered = fed.iter().copied().filter(|state| state.fetched.is_some());
    let first = answered.clone().next();
    answered.find(|state| !state.failing()).or(first)
}

/// All sections: those that problems are found in.
pub(crate) const ALL: &[Section] = &[
    Section::Cloudlets,
    Section::Instances,
    Section::Clusters,
    Section::Kaas,
    Section::Machines,
    Section::Hosts,
    Section::Volumes,
    Section::Backups,
    Section::Operations,
    Section::Process,
    Section::Storage,
    Section::Nodes,
    Section::Objects,
    Section::Alerts,
    Section::Exporters,
];

/// State that the service and its streams share.
pub(crate) struct Shared {
    pub(crate) board: Arc<Board>,
    pub(crate) series: Arc<Series>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) stop: CancellationToken,
    pub(crate) started: Started,
    pub(crate) tasks: Mutex<Option<Tasks>>,
    views: Mutex<BTreeMap<String, (u64, Arc<Overview>)>>,
    watchers: Arc<()>,
}

impl Shared {
    pub(crate) fn new(board: Arc<Board>, series: Arc<Series>, audit: Arc<Audit>) -> Self {
        Self {
            board,
            series,
            audit,
            stop: CancellationToken::new(),
            started: Started::now(),
            tasks: Mutex::default(),
            views: Mutex::default(),
            watchers: Arc::default(),
        }
    }

    /// The newest overview as a caller may see it, made once for all who see
    /// the same.
    fn view(&self, scope: &Scope) -> Arc<Overview> {
        let snapshot = self.board.snapshot();
        let version = snapshot.overview.version;
        let name = format!("{scope:?}");
        let known = self.views.lock().get(&name).cloned();
        if let Some((_, view)) = known.filter(|(made, _)| *made == version) {
            return view;
        }
        let view = snapshot::view(&snapshot, scope, self.board.thresholds());
        let mut views = self.views.lock();
        if views.len() >= MOST_VIEWS {
            views.clear();
        }
        views.insert(name, (version, Arc::clone(&view)));
        view
    }

    fn watchers(&self) -> usize {
        Arc::strong_count(&self.watchers) - 1
    }
}

/// The service.
pub(crate) struct Dashboards(Arc<Shared>);

impl Dashboards {
    pub(crate) fn service(shared: Arc<Shared>) -> DashboardServiceServer<Self> {
        DashboardServiceServer::new(Self(shared))
    }
}

/// Returns true if the caller may see a line. Lines of machines and volumes are not
/// for callers who see only their organisation's objects.
fn sees_line(scope: &Scope, key: &Key) -> bool {
    scope.sees(&series::object(key))
}

#[tonic::async_trait]
impl DashboardService for Dashboards {
    async fn get_overview(
        &self,
        request: Request<GetOverviewRequest>,
    ) -> Result<Response<Overview>, Status> {
        let scope = Scope::of(&request);
        let mut overview = Overview::clone(&self.0.view(&scope));
        if scope.sees_shared() {
            let sources = self.0.board.sources();
            let there = sources.iter().filter(|state| !state.absent);
            overview.sources = there.map(snapshot::to_source).collect();
        }
        aged(&self.0.board, ALL, overview)
    }

    type WatchOverviewStream = Updates;

    async fn watch_overview(
        &self,
        request: Request<WatchOverviewRequest>,
    ) -> Result<Response<Updates>, Status> {
        let scope = Scope::of(&request);
        let since = request.into_inner().events_since.and_then(unstamp);
        Ok(Response::new(watch::updates(Arc::clone(&self.0), scope, since)))
    }

    async fn list_events(
        &self,
        request: Request<ListEventsRequest>,
    ) -> Result<Response<ListEventsResponse>, Status> {
        let scope = Scope::of(&request);
        let ListEventsRequest { since, kind, name, limit, name_contains } = request.into_inner();
        let most = match limit {
            0 => USUAL_EVENTS,
            limit => usize::try_from(limit).unwrap_or(MOST_EVENTS).min(MOST_EVENTS),
        };
        let since = since.map(|since| (since.seconds, since.nanos));
        let found = self.0.board.events().list(most, |event| {
            let object = event.object.clone().unwrap_or_default();
            let time = event.time.map(|time| (time.seconds, time.nanos));
            scope.sees(&object)
                && (kind.is_empty() || object.kind == kind)
                && (name.is_empty() || object.name == name)
                && object.name.contains(&name_contains)
                && since.is_none_or(|since| time >= Some(since))
        });
        let events = found.iter().map(|event| (**event).clone()).collect();
        Ok(Response::new(ListEventsResponse { events }))
    }

    async fn list_series(
        &self,
        request: Request<ListSeriesRequest>,
    ) -> Result<Response<ListSeriesResponse>, Status> {
        let scope = Scope::of(&request);
        let keys = self.0.series.keys();
        let info = |metric: &series::Metric| {
            let mine =
                keys.iter().filter(|key| key.metric == metric.name && sees_line(&scope, key));
            SeriesInfo {
                name: metric.name.into(),
                unit: metric.unit.into(),
                help: metric.help.into(),
                objects: mine.map(series::object).collect(),
            }
        };
        Ok(Response::new(ListSeriesResponse { series: METRICS.iter().map(info).collect() }))
    }

    async fn get_series(
        &self,
        request: Request<GetSeriesRequest>,
    ) -> Result<Response<GetSeriesResponse>, Status> {
        let scope = Scope::of(&request);
        let query = Query::new(request.into_inner(), self.0.board.clock().now())?;
        let found = self.0.series.query(&query, |key| sees_line(&scope, key));
        let series =
            found.into_iter().map(|(key, points)| series::to_series(&key, points)).collect();
        Ok(Response::new(GetSeriesResponse { series }))
    }

    async fn list_audit(
        &self,
        request: Request<ListAuditRequest>,
    ) -> Result<Response<ListAuditResponse>, Status> {
        let nobody = Identity::anonymous();
        let caller = request.extensions().get::<Identity>().unwrap_or(&nobody);
        let own = (!caller.has_role(Role::Admin)).then(|| caller.name.clone());
        let request = request.into_inner();
        let audit = Arc::clone(&self.0.audit);
        let listed =
            tokio::task::spawn_blocking(move || audit.list(&request, own.as_deref())).await;
        let listed = listed.map_err(|_| Status::internal("audit lines cannot be read"))??;
        Ok(Response::new(listed))
    }

    async fn get_process(
        &self,
        _: Request<GetProcessRequest>,
    ) -> Result<Response<Process>, Status> {
        let shared = Arc::clone(&self.0);
        let described = tokio::task::spawn_blocking(move || describe(&shared)).await;
        described.map(Response::new).map_err(|_| Status::internal("this process tells nothing"))
    }
}
