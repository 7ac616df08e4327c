//! Questions of a device to a match engine.

use std::path::PathBuf;

use selvage_api::distributed_match_engine::{
    AppInstListReply, AppInstListRequest, AppPort, FindCloudletReply, FindCloudletRequest, Loc,
    RegisterClientReply, RegisterClientRequest, VerifyLocationReply, VerifyLocationRequest,
    match_engine_api_client::MatchEngineApiClient,
};
use selvage_edge::access_ports;

use super::node::sheet::Sheet;
use crate::{Error, output, session::Session, target};

const REGISTERED: &str = "distributed_match_engine.RegisterClientReply";
const FOUND: &str = "distributed_match_engine.FindCloudletReply";
const VERIFIED: &str = "distributed_match_engine.VerifyLocationReply";
const LISTED: &str = "distributed_match_engine.AppInstListReply";

// No doc comment: it would speak for whatever this is flattened into.
#[derive(clap::Subcommand, Debug)]
pub enum DmeCommand {
    /// Get a cookie for an app
    Register(Register),
    /// Find the instance of an app that a device should use
    #[command(after_help = "\
Example:
  selvage dme find --developer AcmeAppCo --appname app --appvers 1.0 --carrier tmus --latitude 31 --longitude -91")]
    Find(Ask),
    /// Check where a device says it is
    Verify(Verify),
    /// List everything an app runs on, the nearest first
    #[command(visible_alias = "ls")]
    List(Ask),
}

/// `selvage dme register`
#[derive(clap::Args, Debug)]
pub struct Register {
    #[command(flatten)]
    app: App,
}

/// `selvage dme find` and `selvage dme list`
#[derive(clap::Args, Debug)]
pub struct Ask {
    #[command(flatten)]
    app: App,
    /// Cookie of an earlier registration, in a file; - for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["developer", "appname", "appvers"])]
    cookie_file: Option<PathBuf>,
    #[command(flatten)]
    location: Location,
}

/// `selvage dme verify`
#[derive(clap::Args, Debug)]
pub struct Verify {
    #[command(flatten)]
    ask: Ask,
    /// Token of the device for the carrier's location API, in a file
    #[arg(long, value_name = "FILE")]
    location_token_file: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct App {
    /// Developer of the app
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    developer: String,
    /// Name of the app
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    appname: String,
    /// Version of the app
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    appvers: String,
    /// Token that the developer signed, in a file, for apps with a public key
    #[arg(long, value_name = "FILE")]
    auth_token_file: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct Location {
    /// Carrier of the device
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    carrier: String,
    /// Latitude of the device, in degrees
    #[arg(long, value_name = "DEGREES", allow_negative_numbers = true)]
    latitude: f64,
    /// Longitude of the device, in degrees
    #[arg(long, value_name = "DEGREES", allow_negative_numbers = true)]
    longitude: f64,
}

impl Location {
    fn loc(&self) -> Loc {
        Loc { latitude: self.latitude, longitude: self.longitude, ..Loc::default() }
    }
}

pub(crate) async fn run(command: DmeCommand, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        DmeCommand::Register(args) => {
            let reply = register(&args.app, session).await?;
            session.printer().message(&output::dynamic(REGISTERED, &reply)?)
        }
        DmeCommand::Find(args) => find(args, session).await,
        DmeCommand::Verify(args) => verify(args, session).await,
        DmeCommand::List(args) => list(args, session).await,
    }
}

fn secret(file: Option<&PathBuf>, what: &str, session: &mut Session<'_>) -> Result<String, Error> {
    let Some(path) = file else { return Ok(String::new()) };
    Ok(target::secret_file(path, what, session.io)?.expose().to_owned())
}

async fn register(app: &App, session: &mut Session<'_>) -> Result<RegisterClientReply, Error> {
    let request = RegisterClientRequest {
        dev_name: app.developer.clone(),
        app_name: app.appname.clone(),
        app_vers: app.appvers.clone(),
        auth_token: secret(app.auth_token_file.as_ref(), "--auth-token-file", session)?,
        ..RegisterClientRequest::default()
    };
    let client = session.client().await?;
    client
        .call(request, |channel, request| async move {
            MatchEngineApiClient::new(channel).register_client(request).await
        })
        .await
}

/// The cookie that was given, or a new one.
async fn cookie(args: &Ask, session: &mut Session<'_>) -> Result<String, Error> {
    match &args.cookie_file {
        Some(_) => secret(args.cookie_file.as_ref(), "--cookie-file", session),
        None => Ok(register(&args.app, session).await?.session_cookie),
    }
}

async fn find(args: Ask, session: &mut Session<'_>) -> Result<(), Error> {
    let request = FindCloudletRequest {
        session_cookie: cookie(&args, session).await?,
        gps_location: Some(args.location.loc()),
        carrier_name: args.location.carrier,
        ..FindCloudletRequest::default()
    };
    let client = session.client().await?;
    let reply: FindCloudletReply = client
        .call(request, |channel, request| async move {
            MatchEngineApiClient::new(channel).find_cloudlet(request).await
        })
        .await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(FOUND, &reply)?);
    }
    let mut sheet = Sheet::new(&["STATUS", "FQDN", "PORTS", "LATITUDE", "LONGITUDE"]);
    let at = reply.cloudlet_location.unwrap_or_default();
    sheet.push([
        reply.status().as_str_name().to_owned(),
        reply.fqdn.clone(),
        ports(&reply.ports),
        at.latitude.to_string(),
        at.longitude.to_string(),
    ]);
    sheet.print(session)
}

async fn verify(args: Verify, session: &mut Session<'_>) -> Result<(), Error> {
    let token = secret(args.location_token_file.as_ref(), "--location-token-file", session)?;
    let request = VerifyLocationRequest {
        session_cookie: cookie(&args.ask, session).await?,
        gps_location: Some(args.ask.location.loc()),
        carrier_name: args.ask.location.carrier,
        verify_loc_token: token,
        ..VerifyLocationRequest::default()
    };
    let client = session.client().await?;
    let reply: VerifyLocationReply = client
        .call(request, |channel, request| async move {
            MatchEngineApiClient::new(channel).verify_location(request).await
        })
        .await?;
    session.printer().message(&output::dynamic(VERIFIED, &reply)?)
}

async fn list(args: Ask, session: &mut Session<'_>) -> Result<(), Error> {
    let request = AppInstListRequest {
        session_cookie: cookie(&args, session).await?,
        gps_location: Some(args.location.loc()),
        carrier_name: args.location.carrier,
        ..AppInstListRequest::default()
    };
    let client = session.client().await?;
    let reply: AppInstListReply = client
        .call(request, |channel, request| async move {
            MatchEngineApiClient::new(channel).get_app_inst_list(request).await
        })
        .await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(LISTED, &reply)?);
    }
    let mut sheet = Sheet::new(&["CARRIER", "CLOUDLET", "KM", "FQDN", "PORTS"]);
    for cloudlet in &reply.cloudlets {
        for instance in &cloudlet.appinstances {
            sheet.push([
                cloudlet.carrier_name.clone(),
                cloudlet.cloudlet_name.clone(),
                format!("{:.1}", cloudlet.distance),
                instance.fqdn.clone(),
                ports(&instance.ports),
            ]);
        }
    }
    sheet.print(session)
}

fn ports(ports: &[AppPort]) -> String {
    let text = |port: &AppPort| {
        let protocol = access_ports::proto_name(port.proto());
        let path = match port.path_prefix.trim_start_matches('/') {
            "" => String::new(),
            path => format!("/{path}"),
        };
        format!("{protocol}:{}{path}", port.public_port)
    };
    ports.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use selvage_api::distributed_match_engine::LProto;

    use super::*;

    #[test]
    fn ports_are_shown_with_the_path_that_leads_to_the_app() {
        let port = |proto: LProto, public_port, path_prefix: &str| AppPort {
            proto: proto.into(),
            public_port,
            path_prefix: path_prefix.into(),
            ..AppPort::default()
        };
        let given = [port(LProto::Tcp, 80, ""), port(LProto::Http, 443, "acme/hello10/p8080")];
        assert_eq!(ports(&given), "tcp:80,http:443/acme/hello10/p8080");
    }
}
