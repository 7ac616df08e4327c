//! A simulated MaaS: its texts, its codes and its states, on a clock that is
//! moved by hand, with faults that tests script.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use selvage_store::clock::{Clock, ManualClock};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Our user, and its API key.
pub(crate) const OWNER: &str = "selvage";
pub(crate) const KEY: &str = "conskey:tokenkey:canary+sec/ret";
const SIGNATURE: &str = "%26canary%2Bsec%2Fret";

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    Whoami,
    List,
    Read,
    Allocate,
    Deploy,
    Release,
}

impl Call {
    pub(crate) const ALL: [Self; 6] =
        [Self::Whoami, Self::List, Self::Read, Self::Allocate, Self::Deploy, Self::Release];
}

/// Something that goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done, and this is answered.
    Answer(u16, Option<u32>, &'static str),
    /// Nothing is done, and the connection breaks.
    Reset,
    /// It is done, and the connection breaks.
    LoseAnswer,
    /// It is done, and no answer comes before the client gives up.
    Silence,
    /// The connection breaks; it is done when the clock moves.
    Late,
    /// It is done, and the answer is cut off.
    Cut,
    /// The client's process ends before it is done.
    CrashBefore,
    /// The client's process ends after it is done.
    CrashAfter,
}

/// End of a deployment, or of giving a machine back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Well,
    Fails,
    /// Without news until MaaS itself gives up.
    Sticks,
}

/// MaaS gives up on a deployment without news, and on a release.
const DEPLOY_LIMIT: u64 = 30 * 60 * 1000;
const RELEASE_LIMIT: u64 = 5 * 60 * 1000;

#[derive(Debug, Clone)]
pub(crate) struct SimMachine {
    pub(crate) id: String,
    pub(crate) tags: Vec<String>,
    pub(crate) status: u32,
    pub(crate) owner: Option<String>,
    pub(crate) agent: String,
    pub(crate) locked: bool,
    cpu_count: u32,
    memory: u64,
    user_data: String,
    /// Next state that it comes to by itself, and when.
    due: Option<(u64, u32)>,
}

pub(crate) struct MaasState {
    pub(crate) machines: BTreeMap<String, SimMachine>,
    pub(crate) deployments: VecDeque<Outcome>,
    pub(crate) releases: VecDeque<Outcome>,
    pub(crate) images: Vec<String>,
    /// Tags that are known although no machine has them.
    pub(crate) tags: BTreeSet<String>,
    pub(crate) addresses: Vec<String>,
    /// Milliseconds that the clock of MaaS is ahead.
    pub(crate) ahead: u64,
    pub(crate) deploy_time: u64,
    pub(crate) release_time: u64,
    /// True if a machine loses the name of its agent when it begins to go
    /// back, or when it is back.
    pub(crate) forgets_early: bool,
    /// First deployments are answered as if nothing had begun.
    pub(crate) answers_allocated: bool,
    pub(crate) nonce_used: u32,
    by_call: BTreeMap<(Call, u32), Fault>,
    by_number: BTreeMap<u32, Fault>,
    counts: BTreeMap<Call, u32>,
    requests: u32,
    nonces: BTreeSet<String>,
    /// Requests that are done when the clock has moved.
    late: Vec<(u64, Call, String, Form)>,
    /// Machines that started, with their user data.
    pub(crate) boots: Vec<(String, String)>,
    /// All user data that ever was.
    pub(crate) user_data: Vec<String>,
    pub(crate) allocations: u32,
}

type Form = Vec<(String, String)>;

/// A simulated MaaS that listens on a port. Clones are the same.
#[derive(Clone)]
pub(crate) struct Sim {
    pub(crate) world: Arc<Mutex<MaasState>>,
    pub(crate) url: String,
    clock: ManualClock,
    crash: Arc<Notify>,
}

fn status_name(status: u32) -> &'static str {
    const NAMES: [&str; 23] = [
        "New",
        "Commissioning",
        "Failed commissioning",
        "Missing",
        "Ready",
        "Reserved",
        "Deployed",
        "Retired",
        "Broken",
        "Deploying",
        "Allocated",
        "Failed deployment",
        "Releasing",
        "Releasing failed",
        "Disk erasing",
        "Failed disk erasing",
        "Rescue mode",
        "Entering rescue mode",
        "Failed to enter rescue mode",
        "Exiting rescue mode",
        "Failed to exit rescue mode",
        "Testing",
        "Failed testing",
    ];
    NAMES[status as usize]
}

impl SimMachine {
    fn json(&self, addresses: &[String]) -> Value {
        let shown = matches!(self.status, 6 | 9);
        let id = &self.id;
        json!({
            "system_id": id, "hostname": format!("host-{id}"), "fqdn": format!("host-{id}.maas"),
            "domain": {"id": 0, "name": "maas"}, "owner": self.owner, "owner_data": {},
            "resource_uri": format!("/MAAS/api/2.0/machines/{id}/"),
            "status": self.status, "status_name": status_name(self.status),
            "status_action": "", "status_message": "", "power_state": "on", "power_type": "ipmi",
            "architecture": "amd64/generic", "cpu_count": self.cpu_count, "memory": self.memory,
            "storage": 512.0, "swap_size": null, "osystem": "ubuntu", "distro_series": "noble",
            "hwe_kernel": "", "locked": self.locked, "tag_names": self.tags,
            "ip_addresses": if shown { addresses } else { &[] },
            "interface_set": [], "boot_interface": null, "blockdevice_set": [],
            "physicalblockdevice_set": [], "zone": {"id": 1, "name": "default"},
            "pool": {"id": 0, "name": "default"}, "node_type": 0, "node_type_name": "Machine",
            "constraints_by_type": {},
        })
    }
}

/// Values of a parameter, in their order.
fn all<'a>(form: &'a Form, key: &str) -> Vec<&'a String> {
    form.iter().filter(|(name, _)| name == key).map(|(_, value)| value).collect()
}

enum Answer {
    Json(Value),
    Text(u16, String),
    Fields(Value),
}

impl MaasState {
    fn settle(&mut self, now: u64) {
        let (due, later) = std::mem::take(&mut self.late).into_iter().partition(|l| l.0 < now);
        self.late = later;
        let due: Vec<(u64, Call, String, Form)> = due;
        for (_, call, path, form) in due {
            self.act(call, &path, &form, now);
        }
        let MaasState { machines, boots, .. } = self;
        for machine in machines.values_mut() {
            let Some((at, next)) = machine.due else { continue };
            if at > now {
                continue;
            }
            machine.due = None;
            machine.status = next;
            match next {
                6 => boots.push((machine.id.clone(), machine.user_data.clone())),
                4 => {
                    machine.owner = None;
                    machine.agent.clear();
                    machine.user_data.clear();
                }
                _ => {}
            }
        }
    }

    fn act(&mut self, call: Call, path: &str, form: &Form, now: u64) -> Answer {
        let id = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        match call {
            Call::Whoami => Answer::Json(json!({"username": OWNER, "is_superuser": false})),
            Call::List => {
                let agent = form.iter().find(|(name, _)| name == "agent_name");
                let fits =
                    |machine: &&SimMachine| agent.is_none_or(|(_, agent)| *agent == machine.agent);
                let seen = self.machines.values().filter(fits);
                Answer::Json(seen.map(|machine| machine.json(&self.addresses)).collect())
            }
            Call::Read => match self.machines.get(&id) {
                Some(machine) => Answer::Json(machine.json(&self.addresses)),
                None => Answer::Text(404, "No Machine matches the given query.".into()),
            },
            Call::Allocate => self.allocate(form),
            Call::Deploy => self.deploy(&id, form, now),
            Call::Release => self.release(&id, form, now),
        }
    }

    fn allocate(&mut self, form: &Form) -> Answer {
        let wanted = all(form, "tags");
        let known = |tag: &String| {
            self.tags.contains(tag) || self.machines.values().any(|m| m.tags.contains(tag))
        };
        if let Some(unknown) = wanted.iter().find(|tag| !known(tag)) {
            return Answer::Fields(json!({"tags": [format!("No such tag(s): '{unknown}'.")]}));
        }
        let fits = |m: &&mut SimMachine| {
            m.status == 4 && !m.locked && wanted.iter().all(|tag| m.tags.contains(tag))
        };
        let candidates = self.machines.values_mut().filter(fits);
        let cheapest =
            candidates.min_by_key(|m| (u64::from(m.cpu_count) + m.memory / 1024, m.id.clone()));
        let Some(machine) = cheapest else {
            let text = match wanted.as_slice() {
                [] => "No machine available.".to_owned(),
                tags => format!(
                    "No available machine matches constraints: [('tags', {tags:?})] (resolved to \
                     \"tags={}\")",
                    tags.iter().map(|tag| tag.as_str()).collect::<Vec<_>>().join(",")
                ),
            };
            return Answer::Text(409, text);
        };
        machine.status = 10;
        machine.owner = Some(OWNER.into());
        machine.agent =
            all(form, "agent_name").first().map(ToString::to_string).unwrap_or_default();
        self.allocations += 1;
        Answer::Json(machine.json(&self.addresses))
    }

    fn deploy(&mut self, id: &str, form: &Form, now: u64) -> Answer {
        let value = |key: &str| form.iter().find(|(name, _)| name == key).map(|(_, v)| v.clone());
        let outcome = self.deployments.pop_front().unwrap_or(Outcome::Well);
        let Some(machine) = self.machines.get_mut(id) else {
            return Answer::Text(404, "No Machine matches the given query.".into());
        };
        if machine.owner.as_deref() != Some(OWNER) {
            return Answer::Text(403, "Forbidden".into());
        }
        if machine.status != 10 {
            let state = status_name(machine.status);
            let text = format!("Can't deploy a machine that is in the '{state}' state");
            return Answer::Text(409, text);
        }
        if let Some(series) = value("distro_series")
            && !self.images.contains(&series)
        {
            let text = format!("'{series}' is not a valid distro_series.");
            return Answer::Fields(json!({"distro_series": [text]}));
        }
        machine.user_data = value("user_data").unwrap_or_default();
        self.user_data.push(machine.user_data.clone());
        machine.status = 9;
        machine.due = Some(match outcome {
            Outcome::Well => (now + self.deploy_time, 6),
            Outcome::Fails => (now + self.deploy_time / 2, 11),
            Outcome::Sticks => (now + DEPLOY_LIMIT, 11),
        });
        let mut shown = machine.json(&self.addresses);
        if self.answers_allocated {
            shown["status"] = json!(10);
        }
        Answer::Json(shown)
    }

    fn release(&mut self, id: &str, form: &Form, now: u64) -> Answer {
        let erase = form.iter().any(|(name, value)| name == "erase" && value == "true");
        let Some(machine) = self.machines.get_mut(id) else {
            return Answer::Text(404, "No Machine matches the given query.".into());
        };
        if matches!(machine.status, 4 | 12) {
            return Answer::Json(machine.json(&self.addresses));
        }
        if machine.owner.as_deref() != Some(OWNER) || machine.locked {
            return Answer::Text(403, format!("You cannot release machine {id}."));
        }
        if !matches!(machine.status, 5 | 6 | 8 | 9 | 10 | 11 | 13 | 15) {
            let state = status_name(machine.status);
            let text = format!("Machine cannot be released in its current state ('{state}').");
            return Answer::Text(409, text);
        }
        let outcome = self.releases.pop_front().unwrap_or(Outcome::Well);
        machine.status = if erase { 14 } else { 12 };
        let failed = machine.status + 1;
        machine.due = Some(match outcome {
            Outcome::Well => (now + self.release_time, 4),
            Outcome::Fails => (now + self.release_time, failed),
            Outcome::Sticks => (now + RELEASE_LIMIT, failed),
        });
        if self.forgets_early {
            machine.agent.clear();
        }
        if self.release_time == 0 {
            self.settle(now);
        }
        Answer::Json(self.machines[id].json(&self.addresses))
    }

    /// The fault of the next request of that kind.
    fn fault(&mut self, call: Call) -> Option<Fault> {
        self.requests += 1;
        let count = self.counts.entry(call).or_default();
        *count += 1;
        let by_call = self.by_call.remove(&(call, *count));
        let fault = self.by_number.remove(&self.requests).or(by_call);
        // MaaS does not lie about machines that are there.
        fault.filter(|fault| call != Call::Read || !matches!(fault, Fault::Answer(403 | 404, ..)))
    }

    fn authorize(&mut self, headers: &HeaderMap, now: u64) -> Result<(), (u16, String)> {
        let now = (now + self.ahead) / 1000;
        let wrong = |text: String| Err((401, format!("Authorization Error: {text}")));
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("OAuth ")).unwrap_or_default();
        let parameters: BTreeMap<&str, &str> = given
            .split(", ")
            .filter_map(|part| part.split_once('='))
            .map(|(name, value)| (name, value.trim_matches('"')))
            .collect();
        let get = |name: &str| parameters.get(name).copied().unwrap_or_default();
        let timestamp = get("oauth_timestamp").parse::<u64>().unwrap_or(0);
        if now.saturating_sub(timestamp) > 300 {
            return wrong(format!(
                "'Expired timestamp: given {timestamp} and now {now} has a greater difference \
                 than threshold 300'"
            ));
        }
        let nonce = get("oauth_nonce").to_owned();
        let used = self.nonce_used > 0;
        self.nonce_used = self.nonce_used.saturating_sub(1);
        if nonce.is_empty() || used || !self.nonces.insert(nonce.clone()) {
            return wrong(format!("'Nonce already used: {nonce}'"));
        }
        if get("oauth_consumer_key") != "conskey" {
            return wrong("Invalid API key.".into());
        }
        let plain = get("oauth_signature_method") == "PLAINTEXT";
        if get("oauth_token") != "tokenkey" || get("oauth_signature") != SIGNATURE || !plain {
            return wrong("'Invalid access token: tokenkey'".into());
        }
        Ok(())
    }
}

impl Sim {
    /// Starts one with so many machines.
    pub(crate) async fn start(count: usize, clock: ManualClock) -> Self {
        let machine = |number: usize| {
            let id = format!("abc{number:03}");
            let cpu_count = 4 + u32::try_from(number).unwrap_or(0);
            let machine = SimMachine {
                id: id.clone(),
                tags: vec!["standard".into()],
                status: 4,
                owner: None,
                agent: String::new(),
                locked: false,
                cpu_count,
                memory: 8192,
                user_data: String::new(),
                due: None,
            };
            (id, machine)
        };
        let world = MaasState {
            machines: (0..count).map(machine).collect(),
            deployments: VecDeque::new(),
            releases: VecDeque::new(),
            images: vec!["noble".into()],
            tags: BTreeSet::new(),
            addresses: vec!["192.0.2.7".into()],
            ahead: 0,
            deploy_time: 300_000,
            release_time: 60_000,
            forgets_early: true,
            answers_allocated: false,
            nonce_used: 0,
            by_call: BTreeMap::new(),
            by_number: BTreeMap::new(),
            counts: BTreeMap::new(),
            requests: 0,
            nonces: BTreeSet::new(),
            late: Vec::new(),
            boots: Vec::new(),
            user_data: Vec::new(),
            allocations: 0,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/MAAS", listener.local_addr().unwrap());
        let world = Arc::new(Mutex::new(world));
        let sim = Self { world, url, clock, crash: Arc::default() };
        let router = Router::new().fallback(serve).with_state(sim.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        sim
    }

    /// Lets the n-th request of that kind, counted from 1, go wrong.
    pub(crate) fn fault(&self, call: Call, nth: u32, fault: Fault) {
        self.world.lock().by_call.insert((call, nth), fault);
    }

    /// Lets a request go wrong, counted from now, whatever it is.
    pub(crate) fn fault_at(&self, request: u32, fault: Fault) {
        let mut world = self.world.lock();
        let at = world.requests + request;
        world.by_number.insert(at, fault);
    }

    pub(crate) fn forget_faults(&self) {
        let mut world = self.world.lock();
        world.by_call.clear();
        world.by_number.clear();
        world.deployments.clear();
        world.releases.clear();
    }

    /// Returns when the client's process was to end.
    pub(crate) async fn crashed(&self) {
        self.crash.notified().await;
    }

    /// Takes what became due into account; returns machines that started.
    pub(crate) fn tick(&self) -> Vec<(String, String)> {
        let mut world = self.world.lock();
        world.settle(self.clock.now());
        std::mem::take(&mut world.boots)
    }

    /// Machines that we have or that are on their way back.
    pub(crate) fn owned(&self) -> Vec<String> {
        let world = self.world.lock();
        let ours = |m: &&SimMachine| m.owner.as_deref() == Some(OWNER);
        world.machines.values().filter(ours).map(|m| m.id.clone()).collect()
    }

    pub(crate) fn machine(&self, id: &str) -> Option<SimMachine> {
        self.world.lock().machines.get(id).cloned()
    }

    pub(crate) fn change(&self, id: &str, change: impl FnOnce(&mut SimMachine)) {
        if let Some(machine) = self.world.lock().machines.get_mut(id) {
            change(machine);
        }
    }
}

fn call_of(method: &Method, path: &str, op: &str) -> Option<Call> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (method.as_str(), segments.as_slice(), op) {
        ("GET", ["users"], "whoami") => Some(Call::Whoami),
        ("GET", ["machines"], "") => Some(Call::List),
        ("GET", ["machines", _], "") => Some(Call::Read),
        ("POST", ["machines"], "allocate") => Some(Call::Allocate),
        ("POST", ["machines", _], "deploy") => Some(Call::Deploy),
        ("POST", ["machines", _], "release") => Some(Call::Release),
        _ => None,
    }
}

fn decode(text: &str) -> Form {
    reqwest::Url::parse(&format!("http://sim/?{text}"))
        .map(|url| url.query_pairs().into_owned().collect())
        .unwrap_or_default()
}

fn broken() -> Response {
    let lost = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("reset")) });
    Response::new(Body::from_stream(lost))
}

async fn serve(
    State(sim): State<Sim>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut response = answer(&sim, &method, &uri, &headers, &body).await;
    let now = sim.clock.now() + sim.world.lock().ahead;
    let time = jiff::Timestamp::from_millisecond(i64::try_from(now).unwrap()).unwrap();
    let date = time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let headers = response.headers_mut();
    headers.insert(header::DATE, HeaderValue::from_str(&date).unwrap());
    headers.insert("x-maas-api-hash", HeaderValue::from_static("sim"));
    response
}

async fn answer(
    sim: &Sim,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response {
    let query = decode(uri.query().unwrap_or_default());
    let op = query.iter().find(|(name, _)| name == "op").map_or("", |(_, op)| op.as_str());
    let path = uri.path().strip_prefix("/MAAS/api/2.0").unwrap_or_default().to_owned();
    let Some(call) = call_of(method, &path, op) else {
        let text = format!("Unrecognised signature: method={method} op={op}");
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    let form = match *method {
        Method::GET => query,
        _ => decode(&String::from_utf8_lossy(body)),
    };
    let now = sim.clock.now();
    let (fault, done) = {
        let mut world = sim.world.lock();
        world.settle(now);
        if let Err((code, text)) = world.authorize(headers, now) {
            let challenge = [(header::WWW_AUTHENTICATE, "OAuth realm=\"OAuth\"")];
            return (StatusCode::from_u16(code).unwrap(), challenge, text).into_response();
        }
        let fault = world.fault(call);
        let act = matches!(
            fault,
            None | Some(Fault::LoseAnswer | Fault::Silence | Fault::Cut | Fault::CrashAfter)
        );
        if fault == Some(Fault::Late) {
            world.late.push((now, call, path.clone(), form.clone()));
        }
        (fault, act.then(|| world.act(call, &path, &form, now)))
    };
    match fault {
        Some(Fault::CrashBefore | Fault::CrashAfter) => {
            sim.crash.notify_one();
            std::future::pending().await
        }
        Some(Fault::Silence) => std::future::pending().await,
        Some(Fault::Reset | Fault::LoseAnswer | Fault::Late) => broken(),
        Some(Fault::Cut) => "{\"system_id\": ".into_response(),
        Some(Fault::Answer(code, retry, text)) => {
            let mut response = (StatusCode::from_u16(code).unwrap(), text).into_response();
            if let Some(seconds) = retry {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        }
        None => match done {
            Some(Answer::Json(value)) => axum::Json(value).into_response(),
            Some(Answer::Fields(value)) => {
                (StatusCode::BAD_REQUEST, axum::Json(value)).into_response()
            }
            Some(Answer::Text(code, text)) => {
                (StatusCode::from_u16(code).unwrap(), text).into_response()
            }
            None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        },
    }
}
