//! Speed of the match engine, by itself and beside a server that answers
//! the same call without doing anything.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use clap::Parser;
use futures::future::try_join_all;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use selvage_api::{
    Code,
    distributed_match_engine::{
        AppInstListReply, AppInstListRequest, AppPort, DynamicLocGroupReply,
        DynamicLocGroupRequest, FindCloudletReply, FindCloudletRequest, FqdnListReply,
        FqdnListRequest, GetLocationReply, GetLocationRequest, Loc, RegisterClientReply,
        RegisterClientRequest, VerifyLocationReply, VerifyLocationRequest,
        match_engine_api_client::MatchEngineApiClient,
        match_engine_api_server::{MatchEngineApi, MatchEngineApiServer},
    },
    edgeproto as wire,
    selvage::matching::CookieKey,
};
use selvage_bench::report::{Report, Verdict, at_least, at_least_figure, of_goal};
use selvage_dme::{AppName, Dme, Engine, Error, Session, Settings, Upstream, keys::KeySource};
use selvage_kit::{
    clock::SystemClock,
    identity::{Authenticator, Credentials, Identity, Refused},
    serve::{Limits, Server, Services, Socket, Trust},
    telemetry::Metrics,
};
use selvage_notify::ClientOptions;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, server::TcpIncoming},
};

/// Measures the match engine; prints figures with ratios.
#[derive(Debug, Parser)]
struct Args {
    /// Instances of the one app
    #[arg(long, default_value_t = 10_000)]
    instances: usize,
    /// Devices that ask for it, in turn
    #[arg(long, default_value_t = 1_000)]
    devices: usize,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Number of times that the engine and its peer are measured in turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Calls that are under way at the same time
    #[arg(long, default_value_t = 16)]
    calls: usize,
    /// Connections that they share
    #[arg(long, default_value_t = 4)]
    connections: usize,
}

const CARRIER: &str = "carrier";

fn app() -> AppName {
    AppName::new("developer of it", "the app", "1.0")
}

/// Spread over the earth, the same at every run.
fn locations(count: usize) -> impl Iterator<Item = (f64, f64)> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chance = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    (0..count).map(move |_| {
        let latitude = (2.0 * chance() - 1.0).asin().to_degrees();
        (latitude, 360.0 * chance() - 180.0)
    })
}

fn instance(number: usize, (latitude, longitude): (f64, f64)) -> wire::AppInst {
    let name = app();
    let app_key = wire::AppKey {
        developer_key: Some(wire::DeveloperKey { name: name.developer.clone() }),
        name: name.name,
        version: name.version,
    };
    let cloudlet_key = wire::CloudletKey {
        operator_key: Some(wire::OperatorKey { name: CARRIER.into() }),
        name: format!("cloudlet-{number:05}"),
    };
    let cluster_inst_key = wire::ClusterInstKey {
        cluster_key: Some(wire::ClusterKey { name: "cluster".into() }),
        cloudlet_key: Some(cloudlet_key),
        developer: name.developer,
    };
    let key = wire::AppInstKey { app_key: Some(app_key), cluster_inst_key: Some(cluster_inst_key) };
    wire::AppInst {
        key: Some(key),
        cloudlet_loc: Some(Loc { latitude, longitude, ..Loc::default() }),
        uri: format!("cloudlet-{number:05}.carrier.example.net"),
        mapped_ports: vec![AppPort {
            proto: 1,
            internal_port: 80,
            public_port: 10_080,
            ..AppPort::default()
        }],
        state: wire::TrackedState::Ready.into(),
        ..wire::AppInst::default()
    }
}

struct OneKey;

#[async_trait]
impl KeySource for OneKey {
    async fn keys(&self) -> Result<Vec<CookieKey>, Error> {
        Ok(vec![CookieKey { version: 1, cookie_secret: vec![7; 64], created: None }])
    }
}

/// An engine that knows so many instances. Nobody tells it more.
async fn engine(instances: usize) -> Result<Dme> {
    let nowhere = ClientOptions { addresses: vec!["127.0.0.1:1".into()], ..Default::default() };
    let upstream = Upstream { controllers: nowhere, keys: Arc::new(OneKey), mirror: None };
    let dme = Dme::open(Settings::default(), upstream, Arc::new(SystemClock))?;
    dme.engine().cookies().load().await?;
    let feed = dme.engine().feed();
    let mut first = instance(0, (0.0, 0.0));
    let key = first.key.take().and_then(|key| key.app_key);
    feed.apps.put(wire::App { key, ..wire::App::default() })?;
    for (number, place) in locations(instances).enumerate() {
        feed.instances.put(instance(number, place))?;
    }
    feed.in_sync();
    feed.publish();
    ensure!(feed.table().instance_count() == instances, "not all instances are there");
    Ok(dme)
}

fn question(cookie: &str, (latitude, longitude): (f64, f64)) -> FindCloudletRequest {
    FindCloudletRequest {
        session_cookie: cookie.to_owned(),
        carrier_name: CARRIER.into(),
        gps_location: Some(Loc { latitude, longitude, ..Loc::default() }),
        ..FindCloudletRequest::default()
    }
}

/// Lookups in a second by one thread.
fn lookups(engine: &Engine, questions: &[FindCloudletRequest], time: Duration) -> Result<f64> {
    let session = Session { app: app(), peer: String::new() };
    let begun = Instant::now();
    let mut count = 0_u64;
    while begun.elapsed() < time {
        for question in questions {
            let found = engine.find(&session, question)?;
            ensure!(found.status == 1, "nothing found");
            count += 1;
        }
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// The same with the cookie looked at.
async fn sessions(
    engine: &Engine,
    questions: &[FindCloudletRequest],
    time: Duration,
) -> Result<f64> {
    let begun = Instant::now();
    let mut count = 0_u64;
    while begun.elapsed() < time {
        for question in questions {
            let session = engine.cookies().verify(&question.session_cookie).await?;
            engine.find(&session, question)?;
            count += 1;
        }
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Answers at once, with an answer as long as the engine's.
struct Plain(FindCloudletReply);

type Answer<T> = std::result::Result<Response<T>, Status>;

#[tonic::async_trait]
impl MatchEngineApi for Plain {
    async fn find_cloudlet(&self, _: Request<FindCloudletRequest>) -> Answer<FindCloudletReply> {
        Ok(Response::new(self.0.clone()))
    }

    async fn register_client(
        &self,
        _: Request<RegisterClientRequest>,
    ) -> Answer<RegisterClientReply> {
        Ok(Response::new(Default::default()))
    }

    async fn verify_location(
        &self,
        _: Request<VerifyLocationRequest>,
    ) -> Answer<VerifyLocationReply> {
        Ok(Response::new(Default::default()))
    }

    async fn get_location(&self, _: Request<GetLocationRequest>) -> Answer<GetLocationReply> {
        Ok(Response::new(Default::default()))
    }

    async fn add_user_to_group(
        &self,
        _: Request<DynamicLocGroupRequest>,
    ) -> Answer<DynamicLocGroupReply> {
        Ok(Response::new(Default::default()))
    }

    async fn get_app_inst_list(&self, _: Request<AppInstListRequest>) -> Answer<AppInstListReply> {
        Ok(Response::new(Default::default()))
    }

    async fn get_fqdn_list(&self, _: Request<FqdnListRequest>) -> Answer<FqdnListReply> {
        Ok(Response::new(Default::default()))
    }
}

/// Devices have no accounts, and the server of a match engine looks for one
/// all the same.
struct NobodyKnown;

#[async_trait]
impl Authenticator for NobodyKnown {
    async fn authenticate(&self, _: &Credentials) -> Result<Identity, Refused> {
        Err(Refused { code: Code::Unauthenticated, message: "nobody is known".into() })
    }
}

/// A server on loopback, until it is stopped.
struct Serving {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Serving {
    fn plain(reply: FindCloudletReply) -> Result<Self> {
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = incoming.local_addr()?;
        let stop = CancellationToken::new();
        let serving = tonic::transport::Server::builder()
            .add_service(MatchEngineApiServer::new(Plain(reply)))
            .serve_with_incoming_shutdown(
                incoming.with_nodelay(Some(true)),
                stop.clone().cancelled_owned(),
            );
        let task = tokio::spawn(async move {
            // Its calls fail when it does.
            let _ = serving.await;
        });
        Ok(Self { address, stop, task })
    }

    async fn engine(dme: &Dme, metrics: &Metrics) -> Result<Self> {
        let mut services = Services::default();
        dme.add_to(&mut services);
        let server = Server::new(services, metrics.clone(), Limits::default()).await?;
        let socket = Socket::tcp(SocketAddr::from(([127, 0, 0, 1], 0)), None)?;
        let address = socket.address().context("a TCP socket has an address")?;
        let stop = CancellationToken::new();
        let trust = Trust::Credentials(Arc::new(NobodyKnown));
        let task = tokio::spawn(server.run(socket, trust, stop.clone()));
        Ok(Self { address, stop, task })
    }

    async fn close(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await?)
    }
}

/// Rate of calls, and their cost.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Calls in a second.
    rate: f64,
    /// CPU time of a call, of client and server together, in us. Others on the
    /// machine make it slower, not dearer.
    cost: f64,
}

impl Pace {
    fn median(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(all.iter().map(figure).collect());
        Self { rate: of(|pace| pace.rate), cost: of(|pace| pace.cost) }
    }
}

/// CPU time of this process so far.
fn cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let sum = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(sum.num_microseconds().try_into()?))
}

/// Makes calls, so many of them under way all the time.
async fn calls(args: &Args, to: SocketAddr, questions: &[FindCloudletRequest]) -> Result<Pace> {
    let connect = (0..args.connections.max(1)).map(|_| async {
        anyhow::Ok(Endpoint::from_shared(format!("http://{to}"))?.connect().await?)
    });
    let channels: Vec<Channel> = try_join_all(connect).await?;
    let time = Duration::from_secs(args.seconds);
    let questions: Arc<[FindCloudletRequest]> = questions.into();
    let (begun, before) = (Instant::now(), cpu()?);
    let callers = (0..args.calls).map(|number| {
        let mut client = MatchEngineApiClient::new(channels[number % channels.len()].clone());
        let questions = Arc::clone(&questions);
        tokio::spawn(async move {
            let mut count = 0_u64;
            let mut next = questions.iter().cycle().skip(number * 61 % questions.len());
            while begun.elapsed() < time
                && let Some(question) = next.next()
            {
                client.find_cloudlet(question.clone()).await?;
                count += 1;
            }
            anyhow::Ok(count)
        })
    });
    let callers: Vec<_> = callers.collect();
    let counts = try_join_all(callers).await?.into_iter().collect::<Result<Vec<u64>>>()?;
    let count = counts.iter().sum::<u64>() as f64;
    let cost = cpu()?.saturating_sub(before).as_secs_f64() * 1e6 / count;
    Ok(Pace { rate: count / begun.elapsed().as_secs_f64(), cost })
}

/// Share of the calls that the server answered within a millisecond.
fn within_a_millisecond(metrics: &Metrics) -> Result<f64> {
    let text = metrics.render();
    let count = |end: &str| -> Result<f64> {
        let line = text.lines().find(|line| {
            line.starts_with("selvage_rpc_duration_seconds_bucket")
                && line.contains("\"FindCloudlet\"")
                && line.contains(end)
        });
        let figure = line.and_then(|line| line.rsplit(' ').next()).context("no durations")?;
        Ok(figure.parse()?)
    };
    Ok(count("le=\"0.001\"")? / count("le=\"+Inf\"")?)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn per_second(rate: f64) -> String {
    format!("{rate:.0}/s")
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let time = Duration::from_secs(args.seconds);
    let mut report = Report::new();
    let dme = engine(args.instances).await?;
    // Devices are elsewhere than instances, and each has a cookie of its own.
    let elsewhere = locations(args.instances + args.devices).skip(args.instances);
    let ask = |(number, place)| {
        let cookie = dme.engine().cookies().issue(&app(), &format!("device {number}"))?;
        Ok(question(&cookie, place))
    };
    let questions = elsewhere.enumerate().map(ask).collect::<Result<Vec<_>>>()?;

    let rate = lookups(dme.engine(), &questions, time)?;
    let what = format!("FindCloudlet in process, {} instances, one thread", args.instances);
    let took = format!("{:.2} us each", 1e6 / rate);
    report.row(what, per_second(rate), took, at_least_figure(rate, 100_000.0));
    let rate = sessions(dme.engine(), &questions, time).await?;
    let took = format!("{:.2} us each", 1e6 / rate);
    let what = format!("the same with the cookies of {} devices", args.devices);
    report.row(what, per_second(rate), took, Verdict::default());

    over_grpc(&args, &dme, &questions, &mut report).await?;
    report.print();
    Ok(())
}

async fn over_grpc(
    args: &Args,
    dme: &Dme,
    questions: &[FindCloudletRequest],
    report: &mut Report,
) -> Result<()> {
    let session = Session { app: app(), peer: String::new() };
    let reply = dme.engine().find(&session, &questions[0])?;
    let metrics = Metrics::new("bench");
    let plain = Serving::plain(reply)?;
    let engine = Serving::engine(dme, &metrics).await?;
    let (mut peer, mut own) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        peer.push(calls(args, plain.address, questions).await?);
        own.push(calls(args, engine.address, questions).await?);
    }
    let (peer, own) = (Pace::median(&peer), Pace::median(&own));
    let what = format!("FindCloudlet over gRPC, {} calls under way", args.calls);
    report.row(&*what, per_second(own.rate), "", at_least_figure(own.rate, 15_000.0));
    let compared = format!("{} plain tonic", per_second(peer.rate));
    report.row("the same", per_second(own.rate), compared, at_least(own.rate, peer.rate, 0.7));
    let micros = |pace: Pace| format!("{:.1} us", pace.cost);
    let compared = format!("{} plain tonic", micros(peer));
    let verdict = format!("{:.2}x", own.cost / peer.cost);
    report.row("CPU of a call, client and server", micros(own), compared, verdict);
    let slow = 1.0 - within_a_millisecond(&metrics)?;
    let measured = format!("{:.3} %", slow * 100.0);
    report.row("calls that took the server over 1 ms", measured, "1 %", of_goal(slow, 0.01));
    plain.close().await?;
    engine.close().await
}
