//! Certificates of people, for clients that can show nothing else. The key is
//! made here and stays here.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::KeyPair;
use selvage_api::selvage::identity::{
    CreateCertificateRequest, CreateCertificateResponse, Grant, WhoAmIRequest,
    identity_service_client::IdentityServiceClient,
};
use zeroize::Zeroizing;

use super::{
    join,
    token::{self, Delete, List},
    user::grant,
};
use crate::{
    Error, duration,
    endpoint::Endpoint,
    session::Session,
    target::{self, Target},
};

/// Port that clients of machines take for granted.
const USUAL_PORT: u16 = 50000;

/// `selvage user cert`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage user cert create laptop --role operator:tmus --ttl 8h --out ~/.selvage
  selvage user cert list
  selvage user cert block laptop

The key is made here and does not leave this machine. Use both files with
--cert and --key, or with any client that shows a certificate.")]
pub enum Certificate {
    /// Get a certificate in your name
    Create(Create),
    /// List certificates, with their last use
    #[command(visible_alias = "ls")]
    List(List),
    /// Refuse a certificate from now on, for good
    Block(Delete),
}

// No doc comment: it would speak for whatever this is flattened into.
#[derive(clap::Args, Debug)]
pub struct Wish {
    /// Role of the certificate, one that its owner holds [default: all of your own]
    #[arg(long = "role", value_name = "ROLE", value_parser = grant)]
    pub roles: Vec<Grant>,
    /// Lifetime, at most 7d
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = duration::parse)]
    pub ttl: Duration,
    /// Owner, in whose name it acts [default: you]
    #[arg(long, value_name = "NAME", requires = "roles")]
    pub user: Option<String>,
}

/// `selvage user cert create`
#[derive(clap::Args, Debug)]
pub struct Create {
    /// Name of the certificate, such as laptop
    pub name: String,
    #[command(flatten)]
    pub wish: Wish,
    /// Directory for person.key, person.crt and ca.crt
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace the key and certificate that are there
    #[arg(long)]
    pub force: bool,
}

/// `selvage node talosconfig`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage node talosconfig --role operator:tmus --file ~/.talos/config
  selvage node -n 10.0.0.5,10.0.0.6 talosconfig --file talosconfig

The file has a key in it, which is made here, and a certificate in your name.
`selvage user cert block NAME` ends it.")]
pub struct Talosconfig {
    /// Name of the certificate, and of the context in the file
    #[arg(default_value = "talosconfig")]
    pub name: String,
    #[command(flatten)]
    pub wish: Wish,
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    pub file: PathBuf,
    /// Replace the file that is there
    #[arg(long)]
    pub force: bool,
}

/// A certificate and the key that was made for it.
struct Made {
    key: Zeroizing<String>,
    answer: CreateCertificateResponse,
}

pub(crate) async fn run(command: Certificate, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Certificate::Create(args) => create(args, session).await,
        Certificate::List(args) => token::list("certificate", args, session).await,
        Certificate::Block(args) => {
            let ended = token::end("certificate", args, session).await?;
            session.io.say(&format!("Certificate {ended} is blocked."))
        }
    }
}

async fn create(args: Create, session: &mut Session<'_>) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.out)
        .map_err(|source| Error::write(&args.out, source))?;
    let [key, certificate, ca] =
        ["person.key", "person.crt", "ca.crt"].map(|name| args.out.join(name));
    refuse_to_replace(&key, args.force)?;
    let target = session.target()?;
    let made = request(&args.name, args.wish, &target, session).await?;
    for (path, text, mode) in [
        (&ca, made.answer.ca.as_str(), 0o644),
        (&certificate, made.answer.certificate.as_str(), 0o644),
        (&key, made.key.as_str(), 0o600),
    ] {
        selvage_files::replace(path, text.as_bytes(), mode)
            .map_err(|source| Error::write(path, source))?;
    }
    let mut record = serde_json::json!({ "key": key, "certificate": certificate, "ca": ca });
    record["not_after"] = end_of(&made.answer).into();
    session.printer().record(&record)
}

pub(crate) async fn talosconfig(
    nodes: Vec<String>,
    args: Talosconfig,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    refuse_to_replace(&args.file, args.force)?;
    let target = session.target()?;
    let endpoints = if nodes.is_empty() { vec![own_address(&target.endpoint)?] } else { nodes };
    let made = request(&args.name, args.wish, &target, session).await?;
    let text = Zeroizing::new(config(&args.name, &endpoints, &made)?);
    selvage_files::replace(&args.file, text.as_bytes(), 0o600)
        .map_err(|source| Error::write(&args.file, source))?;
    let record = serde_json::json!({
        "file": args.file,
        "endpoints": endpoints,
        "not_after": end_of(&made.answer),
    });
    session.printer().record(&record)
}

/// Makes a key and has it signed.
async fn request(
    name: &str,
    wish: Wish,
    target: &Target,
    session: &mut Session<'_>,
) -> Result<Made, Error> {
    let client = session.connect(target).await?;
    let grants = if wish.roles.is_empty() {
        let me = client
            .call(WhoAmIRequest {}, |channel, request| async move {
                IdentityServiceClient::new(channel).who_am_i(request).await
            })
            .await?;
        me.grants
    } else {
        wish.roles
    };
    let (key, csr) = join::key_and_request()?;
    let request = CreateCertificateRequest {
        name: name.to_owned(),
        username: wish.user.unwrap_or_default(),
        grants,
        ttl_seconds: token::seconds(wish.ttl)?,
        csr,
    };
    let answer = client
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).create_certificate(request).await
        })
        .await?;
    check(&answer, &key)?;
    Ok(Made { key: Zeroizing::new(key.serialize_pem()), answer })
}

fn check(answer: &CreateCertificateResponse, key: &KeyPair) -> Result<(), Error> {
    target::certificates_in(&answer.ca, "the answer's ca")?;
    join::require_own_key(&answer.certificate, key)
}

fn refuse_to_replace(path: &Path, force: bool) -> Result<(), Error> {
    if force || !path.try_exists().map_err(|source| Error::read(path, source))? {
        return Ok(());
    }
    Err(Error::Invalid {
        message: format!("{} is there already", path.display()),
        hints: vec!["say --force to replace it, or choose another place".into()],
    })
}

fn end_of(answer: &CreateCertificateResponse) -> Option<String> {
    let end = answer.credential.as_ref()?.expires.as_ref()?;
    jiff::Timestamp::new(end.seconds, end.nanos).ok().map(|time| time.to_string())
}

/// The server, as these clients write it: with a port where it is another than
/// theirs.
fn own_address(endpoint: &Endpoint) -> Result<String, Error> {
    match endpoint {
        Endpoint::Https { host, port: USUAL_PORT } => Ok(host.clone()),
        Endpoint::Https { host, port } => Ok(format!("{host}:{port}")),
        _ => Err(Error::Invalid {
            message: format!("{endpoint}: certificates are shown over https only"),
            hints: vec!["name the machines with -n, or the server with --endpoint".into()],
        }),
    }
}

/// The file as osctl and talosctl read it.
fn config(name: &str, endpoints: &[String], made: &Made) -> Result<String, Error> {
    let encoded = |pem: &str| BASE64_STANDARD.encode(pem);
    let context = serde_json::json!({
        // Clients of 2019 read the one, later ones the other.
        "target": endpoints.first(),
        "endpoints": endpoints,
        "ca": encoded(&made.answer.ca),
        "crt": encoded(&made.answer.certificate),
        "key": encoded(&made.key),
    });
    let file = serde_json::json!({ "context": name, "contexts": { name: context } });
    serde_saphyr::to_string(&file)
        .map_err(|error| Error::Unexpected(format!("the file cannot be written: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_is_as_clients_of_machines_read_it() {
        let made = Made {
            key: Zeroizing::new("KEY".into()),
            answer: CreateCertificateResponse {
                certificate: "CRT".into(),
                ca: "CA".into(),
                credential: None,
            },
        };
        let text = config("edge", &["10.0.0.5".into(), "10.0.0.6:7443".into()], &made).unwrap();
        let read: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read["context"], "edge");
        let context = &read["contexts"]["edge"];
        assert_eq!(context["target"], "10.0.0.5");
        assert_eq!(context["endpoints"][1], "10.0.0.6:7443");
        for (name, pem) in [("ca", "CA"), ("crt", "CRT"), ("key", "KEY")] {
            assert_eq!(context[name], BASE64_STANDARD.encode(pem), "{name}");
        }
    }

    #[test]
    fn the_usual_port_goes_without_saying() {
        let address = |text: &str| own_address(&Endpoint::parse(text).unwrap());
        assert_eq!(address("https://edge.example:50000").unwrap(), "edge.example");
        assert_eq!(address("https://edge.example:8443").unwrap(), "edge.example:8443");
        assert!(address("unix:///run/x.sock").is_err());
    }
}
