//! Join tokens and certificates of machines: a token from somebody who may give one, and a
//! certificate for it.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use rustls_pki_types::CertificateDer;
use selvage_api::selvage::identity::{
    CertificateResponse, CreateJoinTokenRequest, JoinRequest,
    identity_service_client::IdentityServiceClient,
};
use selvage_files::Staged;
use selvage_kit::{
    identity::{Machine, Secret},
    pki,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::trust;
use crate::{
    Error,
    connect::{self, Trust},
    duration,
    endpoint::Endpoint,
    output,
    session::Session,
    target::{self, Target},
};

/// `selvage join-token`
#[derive(clap::Subcommand, Debug)]
pub enum JoinToken {
    /// Make a token with which one machine gets its certificate, once
    Create(Create),
}

/// `selvage join-token create`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage join-token create node/rack3-7
  selvage join-token create cloudlet/tmus/cloud-1 --ttl 24h")]
pub struct Create {
    /// controller, cloudlet/OPERATOR/NAME, node/NAME or dme/NAME
    #[arg(value_parser = machine)]
    pub machine: String,
    /// Lifetime of the token, at most 7d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    pub ttl: Duration,
    /// DNS name or address under which the machine serves, besides its own name
    /// and the address it comes from; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
}

/// `selvage join`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The token comes from `selvage join-token create`; it is read from the file
named with --token-file (- for stdin), from SELVAGE_JOIN_TOKEN, or asked for.

Example:
  selvage join https://edge.example.org:8443 --ca-sha256 3f9a… \\
    --token-file token --out /etc/selvage")]
pub struct Join {
    /// The server that made the token
    #[arg(value_name = "ENDPOINT")]
    pub server: String,
    /// SHA-256 fingerprint of the server's CA [or name the CA itself with --ca]
    #[arg(long, value_name = "HEX")]
    pub ca_sha256: Option<String>,
    /// Directory for machine.key, machine.crt and ca.crt
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace the key and certificate that are there
    #[arg(long)]
    pub force: bool,
}

/// Reads the name of a machine as certificates write it.
pub(super) fn machine(text: &str) -> Result<String, String> {
    Machine::parse(text).map(|machine| machine.to_string()).map_err(|error| error.to_string())
}

pub(crate) async fn create_token(
    command: JoinToken,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let JoinToken::Create(args) = command;
    let ttl_seconds =
        u32::try_from(args.ttl.as_secs()).map_err(|_| Error::invalid("--ttl: at most 7d"))?;
    let machine = args.machine.clone();
    let request = CreateJoinTokenRequest { machine: args.machine, ttl_seconds, names: args.names };
    let target = session.target()?;
    let answer = session
        .connect(&target)
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).create_join_token(request).await
        })
        .await?;
    let message = output::dynamic("selvage.identity.CreateJoinTokenResponse", &answer)?;
    let mut value = output::to_value(&message, true)?;
    value["command"] = join_command(&target.endpoint, &answer.ca_sha256).into();
    if let Some(agent) = agent_command(&machine, &target.endpoint) {
        value["agent"] = agent.into();
    }
    session.printer().record(&value)?;
    session.io.say(
        "Run the command on that machine with the token in SELVAGE_JOIN_TOKEN, or let it ask for it. The token works once.",
    )?;
    if target.endpoint.is_loopback() {
        session.io.say(
            "The address is one only this machine can reach: put the server's own in its place.",
        )?;
    }
    Ok(())
}

/// Command by which a machine's agent joins, a match engine, or the crm of a cloudlet, which
/// nobody has to reach.
fn agent_command(machine: &str, endpoint: &Endpoint) -> Option<String> {
    let (daemon, address) = match machine.split('/').next()? {
        "node" => ("node", " --address 0.0.0.0"),
        "dme" => ("dme", " --address 0.0.0.0"),
        "cloudlet" => ("crm", ""),
        _ => return None,
    };
    let text = endpoint.to_string();
    let server = match endpoint {
        Endpoint::Https { .. } => text.trim_start_matches("https://").trim_end_matches('/'),
        Endpoint::Http { .. } | Endpoint::Unix(_) => "SERVER:PORT",
    };
    Some(format!("selvage {daemon} --controller {server}{address}"))
}

fn join_command(endpoint: &Endpoint, ca_sha256: &str) -> String {
    let server = match endpoint {
        Endpoint::Https { .. } => endpoint.to_string(),
        Endpoint::Http { .. } | Endpoint::Unix(_) => "https://SERVER:PORT".into(),
    };
    let pin =
        if ca_sha256.is_empty() { String::new() } else { format!(" --ca-sha256 {ca_sha256}") };
    format!("selvage join {server}{pin} --out /etc/selvage")
}

pub(crate) async fn join(args: &Join, session: &mut Session<'_>) -> Result<(), Error> {
    let endpoint = Endpoint::parse(&args.server)?;
    let files = OutputFiles::prepare(&args.out, args.force)?;
    let token = token(session)?;
    let authorities = authorities(args, &endpoint, &token, session).await?;
    let (key, request) = key_and_request()?;
    // Before the call: a directory that cannot be written to must not cost
    // the token.
    let staged_key = Staged::new(&files.key, key.serialize_pem().as_bytes(), 0o600)
        .map_err(|source| Error::write(&files.key, source))?;

    let client = session.connect(&Target::bare(endpoint, Trust::Only(authorities.clone()))).await?;
    let request = JoinRequest { token: token.expose().to_owned(), csr: request };
    let answer = client
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).join(request).await
        })
        .await
        .map_err(without_login_hint)?;
    check(&answer, &key, &authorities)?;

    let write = |path: &Path, pem: &str| {
        selvage_files::replace(path, pem.as_bytes(), 0o644)
            .map_err(|source| Error::write(path, source))
    };
    write(&files.ca, &answer.ca)?;
    write(&files.certificate, &answer.certificate)?;
    staged_key.commit().map_err(|source| Error::write(&files.key, source))?;

    let mut record = serde_json::json!({
        "machine": answer.machine,
        "key": files.key,
        "certificate": files.certificate,
        "ca": files.ca,
    });
    if let Some(end) = answer.not_after {
        let time = jiff::Timestamp::new(end.seconds, end.nanos).ok();
        record["not_after"] = time.map(|time| time.to_string()).into();
    }
    session.printer().record(&record)
}

/// A new key, and the request to have it signed.
pub(super) fn key_and_request() -> Result<(KeyPair, String), Error> {
    let key = KeyPair::generate().map_err(no_key)?;
    let request = CertificateParams::default()
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .map_err(no_key)?;
    Ok((key, request))
}

struct OutputFiles {
    key: PathBuf,
    certificate: PathBuf,
    ca: PathBuf,
}

impl OutputFiles {
    fn prepare(dir: &Path, force: bool) -> Result<Self, Error> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .map_err(|source| Error::write(dir, source))?;
        let files = Self {
            key: dir.join("machine.key"),
            certificate: dir.join("machine.crt"),
            ca: dir.join("ca.crt"),
        };
        if !force && files.key.try_exists().map_err(|source| Error::read(&files.key, source))? {
            return Err(Error::Invalid {
                message: format!("{} is there already", files.key.display()),
                hints: vec!["say --force to replace it, or choose another --out".into()],
            });
        }
        Ok(files)
    }
}

fn token(session: &mut Session<'_>) -> Result<Secret, Error> {
    if let Some(path) = &session.global.token_file {
        return target::secret_file(path, "token", session.io);
    }
    if let Some(token) = session.io.var("SELVAGE_JOIN_TOKEN") {
        return Ok(Secret::new(token.trim()));
    }
    session.ask_secret("Join token: ", "give it with --token-file FILE or in SELVAGE_JOIN_TOKEN")
}

async fn authorities(
    args: &Join,
    endpoint: &Endpoint,
    token: &Secret,
    session: &Session<'_>,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    if !matches!(endpoint, Endpoint::Https { .. }) {
        return Err(Error::invalid(format!("{endpoint}: a machine joins over https only")));
    }
    let pin = match (&args.ca_sha256, &session.global.ca) {
        (None, None) => pki::pin_in_token(token.expose()),
        (given, _) => given.as_deref(),
    };
    match (pin, &session.global.ca) {
        (Some(sha256), _) => Ok(vec![trust::pinned(endpoint, sha256).await?]),
        (None, Some(path)) => target::certificates(path),
        (None, None) => Err(Error::Invalid {
            message: "nothing says which CA to trust".into(),
            hints: vec![
                "give the fingerprint that `selvage join-token create` printed with --ca-sha256, or the CA with --ca".into(),
            ],
        }),
    }
}

/// The certificate must be for our key, and the CA the one we trusted.
fn check(
    answer: &CertificateResponse,
    key: &KeyPair,
    trusted: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let wrong =
        |what: &str| Error::Unexpected(format!("the server's answer cannot be used: {what}"));
    let authorities = target::certificates_in(&answer.ca, "the answer's ca")?;
    let known: Vec<String> = trusted.iter().map(connect::fingerprint).collect();
    if !authorities.iter().any(|ca| known.contains(&connect::fingerprint(ca))) {
        return Err(wrong("its CA is another than the one trusted"));
    }
    require_own_key(&answer.certificate, key)
}

/// Refuses a certificate that is for another key.
pub(super) fn require_own_key(certificate: &str, key: &KeyPair) -> Result<(), Error> {
    let wrong =
        |what: &str| Error::Unexpected(format!("the server's answer cannot be used: {what}"));
    let certificates = target::certificates_in(certificate, "the answer's certificate")?;
    let leaf = certificates.first().map(|der| X509Certificate::from_der(der));
    let Some(Ok((_, leaf))) = leaf else { return Err(wrong("the certificate cannot be read")) };
    if leaf.public_key().raw != key.subject_public_key_info().as_slice() {
        return Err(wrong("the certificate is for another key"));
    }
    Ok(())
}

/// A machine that joins has no login.
fn without_login_hint(error: Error) -> Error {
    match error {
        Error::Status { code, message, .. } => Error::Status {
            code,
            message,
            hints: vec![
                "tokens work once and for a time: make a new one with `selvage join-token create`"
                    .into(),
            ],
        },
        other => other,
    }
}

fn no_key(error: rcgen::Error) -> Error {
    Error::Unexpected(format!("no key could be made: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_kind_of_agent_gets_its_own_command() {
        let server = Endpoint::parse("https://edge.example:8443").unwrap();
        let command_for = |machine| agent_command(machine, &server);
        let node = "selvage node --controller edge.example:8443 --address 0.0.0.0";
        assert_eq!(command_for("node/rack3-7").as_deref(), Some(node));
        let engine = "selvage dme --controller edge.example:8443 --address 0.0.0.0";
        assert_eq!(command_for("dme/west").as_deref(), Some(engine));
        let crm = "selvage crm --controller edge.example:8443";
        assert_eq!(command_for("cloudlet/demo/shop-7").as_deref(), Some(crm));
        assert_eq!(command_for("controller"), None);
    }
}
