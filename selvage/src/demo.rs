//! `selvage up --demo`: this machine becomes a cloudlet, and an app runs on
//! it. Everything is made through the contract, as anybody would make it, and
//! stays until it is deleted; a second start finds it.

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use selvage_api::{
    distributed_match_engine::Loc,
    edgeproto::{
        App, AppInst, AppInstKey, AppKey, Cloudlet, CloudletInfo, CloudletKey, CloudletState,
        ClusterInstKey, ClusterKey, Developer, DeveloperKey, Flavor, FlavorKey, ImageType,
        Operator, OperatorKey, Result as Progress, TrackedState, app_api_client::AppApiClient,
        app_inst_api_client::AppInstApiClient, cloudlet_api_client::CloudletApiClient,
        cloudlet_info_api_client::CloudletInfoApiClient, developer_api_client::DeveloperApiClient,
        flavor_api_client::FlavorApiClient, operator_api_client::OperatorApiClient,
    },
};
use selvage_kit::dial;
use selvage_runtime::ImageBuilder;
use tonic::{Code, Response, Status, Streaming, transport::Channel};

use crate::config::Config;

/// The cloudlet that the demonstration makes of this machine.
pub(crate) const CLOUDLET: &str = "demo/here";
const IMAGE: &str = "localhost/selvage-demo:1";
const PAGE: &str = "<!doctype html><title>Selvage</title><h1>Hello from the edge</h1>\n";
/// Timeout of the cloudlet's first report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

fn operator() -> Option<OperatorKey> {
    Some(OperatorKey { name: "demo".into() })
}

fn cloudlet() -> Option<CloudletKey> {
    Some(CloudletKey { operator_key: operator(), name: "here".into() })
}

fn developer() -> Option<DeveloperKey> {
    Some(DeveloperKey { name: "demo".into() })
}

fn flavor() -> Option<FlavorKey> {
    Some(FlavorKey { name: "demo.tiny".into() })
}

fn app() -> Option<AppKey> {
    Some(AppKey { developer_key: developer(), name: "hello".into(), version: "1".into() })
}

fn instance() -> AppInst {
    let cluster = ClusterInstKey {
        cluster_key: Some(ClusterKey { name: selvage_edge::auto_cluster("hello") }),
        cloudlet_key: cloudlet(),
        developer: "demo".into(),
    };
    let key = Some(AppInstKey { app_key: app(), cluster_inst_key: Some(cluster) });
    AppInst { key, ..AppInst::default() }
}

/// Command of the demonstration's app. It writes a line at the start and one for every
/// answer, so that its log has something to show.
const SERVE: &str = "echo hello listens on port 80; exec httpd -f -v -p 80 -h /www";
/// Programs that the demonstration's image is made of.
const BUSYBOX: [&str; 2] = ["/usr/bin/busybox", "/bin/busybox"];

/// Checks what the demonstration needs of this machine, before anything starts.
pub(crate) fn check() -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "--demo runs an app on this machine, which takes root: start `sudo selvage up --demo`, \
             or leave --demo out"
        );
    }
    busybox().map(drop)
}

fn busybox() -> anyhow::Result<&'static Path> {
    let found = BUSYBOX.map(Path::new).into_iter().find(|path| path.is_file());
    found.context("the demonstration's app is made of busybox: install busybox-static")
}

/// Makes everything, telling how it goes.
pub(crate) async fn run(config: Config, names: Option<SocketAddr>) {
    let text = match make(&config).await {
        Ok(made) => guide(&made, names),
        Err(error) => format!("\n  The demonstration did not come up: {error:#}\n\n"),
    };
    // A closed stdout is no reason to stop serving.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The instance that runs.
struct Made {
    address: String,
    /// Name by which the match engine sends devices there.
    name: String,
}

/// Next steps; the last reaches the app by its name, where a name server runs.
fn guide(made: &Made, names: Option<SocketAddr>) -> String {
    let Made { address, name } = made;
    let mut text = format!(
        "\n  The app {} runs on {CLOUDLET}, which is this machine. Try:\n        curl http://{address}/\n        selvage appinst show\n        selvage dme find --developer demo --appname hello --appvers 1 --carrier demo --latitude 50 --longitude 8\n",
        app().map(|app| app.name).unwrap_or_default(),
    );
    if let Some(server) = names {
        let lookup = format!("selvage dns lookup --server {server} {name}");
        text += &format!("        curl --resolve {name}:80:$({lookup}) http://{name}/\n");
    }
    text + "\n"
}

/// The file of its image.
pub(crate) fn image(data: &Path) -> PathBuf {
    data.join("demo-image.tar")
}

/// Makes everything.
async fn make(config: &Config) -> anyhow::Result<Made> {
    let image = image(&config.data);
    write_image(&image)?;
    let channel = dial::unix(&config.socket("dme"));
    objects(&channel, &image).await?;
    until_ready(&channel).await?;
    let mut instances = AppInstApiClient::new(channel);
    finished("CreateAppInst", instances.create_app_inst(instance()).await).await?;
    let shown = instances.show_app_inst(instance()).await;
    let mut shown = shown.map_err(|status| failed("ShowAppInst", &status))?.into_inner();
    let found = shown.message().await.map_err(|status| failed("ShowAppInst", &status))?;
    let found = found.context("the instance is gone again")?;
    Ok(Made { address: address(&found)?, name: found.uri })
}

/// Address of an instance; why it has none, where an earlier start made one
/// that failed.
fn address(found: &AppInst) -> anyhow::Result<String> {
    if found.state() != TrackedState::Ready {
        let (state, errors) = (found.state().as_str_name(), found.errors.join(", "));
        bail!("the instance that is there is in state {state}: {errors}");
    }
    let mut addresses = found.runtime_info.iter().flat_map(|runtime| &runtime.addresses);
    let particular = addresses.find(|address| *address != "0.0.0.0");
    Ok(particular.map_or("127.0.0.1", String::as_str).to_owned())
}

/// Creates the objects that there must be before anything can run.
async fn objects(channel: &Channel, image: &Path) -> anyhow::Result<()> {
    let to = || channel.clone();
    let of = Flavor { key: flavor(), ram: 64, vcpus: 1, disk: 1, ..Flavor::default() };
    fine("CreateFlavor", FlavorApiClient::new(to()).create_flavor(of).await)?;
    let of = Operator { key: operator(), ..Operator::default() };
    fine("CreateOperator", OperatorApiClient::new(to()).create_operator(of).await)?;
    let of = Developer { key: developer(), ..Developer::default() };
    fine("CreateDeveloper", DeveloperApiClient::new(to()).create_developer(of).await)?;
    let location = Some(Loc { latitude: 50.1, longitude: 8.7, ..Loc::default() });
    let of = Cloudlet { key: cloudlet(), location, num_dynamic_ips: 254, ..Cloudlet::default() };
    finished("CreateCloudlet", CloudletApiClient::new(to()).create_cloudlet(of).await).await?;
    let of = App {
        key: app(),
        image_path: format!("file://{}", image.display()),
        image_type: ImageType::Docker.into(),
        deployment: "docker".into(),
        access_ports: "tcp:80".into(),
        default_flavor: flavor(),
        ..App::default()
    };
    fine("CreateApp", AppApiClient::new(to()).create_app(of).await)
}

/// Waits for the cloudlet to report.
async fn until_ready(channel: &Channel) -> anyhow::Result<()> {
    let mut infos = CloudletInfoApiClient::new(channel.clone());
    let asked = CloudletInfo { key: cloudlet(), ..CloudletInfo::default() };
    let looked = async {
        loop {
            let mut shown = infos.show_cloudlet_info(asked.clone()).await?.into_inner();
            if let Some(info) = shown.message().await?
                && info.state() == CloudletState::Ready
            {
                return Ok::<_, Status>(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    match tokio::time::timeout(REPORT_TIMEOUT, looked).await {
        Ok(outcome) => outcome.map_err(|status| failed("ShowCloudletInfo", &status)),
        Err(_) => bail!("the cloudlet {CLOUDLET} does not report"),
    }
}

fn failed(what: &str, status: &Status) -> anyhow::Error {
    anyhow::anyhow!("{what}: {}", status.message())
}

/// Returns whether an earlier start made it, which is as good as made now.
fn is_there(status: &Status) -> bool {
    status.code() == Code::AlreadyExists || status.message().contains("already exists")
}

fn fine(what: &str, outcome: Result<Response<Progress>, Status>) -> anyhow::Result<()> {
    match outcome {
        Err(status) if !is_there(&status) => Err(failed(what, &status)),
        _ => Ok(()),
    }
}

/// The same for what tells of its progress.
async fn finished(
    what: &str,
    outcome: Result<Response<Streaming<Progress>>, Status>,
) -> anyhow::Result<()> {
    let mut stream = match outcome {
        Ok(stream) => stream.into_inner(),
        Err(status) if is_there(&status) => return Ok(()),
        Err(status) => return Err(failed(what, &status)),
    };
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(status) if is_there(&status) => return Ok(()),
            Err(status) => return Err(failed(what, &status)),
        }
    }
}

/// A web server with one page, out of the machine's own busybox.
fn write_image(path: &Path) -> anyhow::Result<()> {
    let found = busybox()?;
    let program = fs::read(found).with_context(|| found.display().to_string())?;
    let image = ImageBuilder::busybox(&program, &["sh", "httpd", "ls", "cat", "ps", "wget"])?
        .command(["/bin/sh", "-c", SERVE]);
    image.file("www/index.html", 0o644, PAGE.as_bytes())?.write(IMAGE, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::edgeproto::AppInstRuntime;

    use super::*;

    #[test]
    fn the_last_step_reaches_the_app_by_its_name() {
        let made = Made { address: "10.101.1.1".into(), name: "hello.here.example".into() };
        let guide_text = guide(&made, Some(([127, 0, 0, 1], 5300).into()));
        let last = guide_text.trim_end().lines().last().unwrap().trim();
        let expected = "curl --resolve hello.here.example:80:$(selvage dns lookup --server \
                        127.0.0.1:5300 hello.here.example) http://hello.here.example/";
        assert_eq!(last, expected);
        assert!(!guide(&made, None).contains("resolve"), "no name server, no name");
    }

    #[test]
    fn the_printed_address_is_the_instances() {
        let mut inst = instance();
        inst.set_state(TrackedState::Ready);
        assert_eq!(address(&inst).unwrap(), "127.0.0.1");
        let addresses = vec!["0.0.0.0".into(), "10.8.3.1".into()];
        inst.runtime_info = Some(AppInstRuntime { addresses, ..AppInstRuntime::default() });
        assert_eq!(address(&inst).unwrap(), "10.8.3.1");
        inst.set_state(TrackedState::DeleteError);
        inst.errors = vec!["no way".into()];
        let refused = address(&inst).unwrap_err().to_string();
        assert_eq!(refused, "the instance that is there is in state DELETE_ERROR: no way");
    }
}
