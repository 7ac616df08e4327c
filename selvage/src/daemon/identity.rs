//! The keys of a process, who may log in, and the first who may.

use std::{fs, io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use selvage_auth::{Auth, CertificateAuthority, GeneratedPassword, SignError, Signed};
use selvage_kit::{
    identity::Machine,
    pki::{self, Authorities, ServerIdentity},
};
use selvage_store::SharedStore;

use crate::config::{Config, StoreKind};

/// File with the first administrator's password.
const PASSWORD_FILE: &str = "initial-admin-password";

/// The keys of a process that is not `--insecure`.
pub(super) struct Keys {
    pub(super) authorities: Authorities,
    pub(super) identity: Arc<ServerIdentity>,
    pub(super) server: Arc<rustls::ServerConfig>,
}

/// Opens or makes the CA and the server's certificate.
pub(super) fn keys(config: &Config) -> anyhow::Result<Keys> {
    let directory = config.data.join("pki");
    let authorities = Authorities::open_or_create(&directory).context("certificates")?;
    let identity = match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => ServerIdentity::from_files(certificate, key),
        _ => ServerIdentity::issued(authorities.clone(), names(config)),
    };
    let identity = Arc::new(identity.context("server certificate")?);
    let server = pki::trusting_server_config(&identity, authorities.trust()).context("TLS")?;
    Ok(Keys { authorities, identity, server })
}

/// By what names clients on this machine and around it reach us.
pub(super) fn names(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    if let Ok(host) = nix::unistd::gethostname()
        && let Ok(host) = host.into_string()
        && !host.is_empty()
    {
        names.push(host);
    }
    let bound = config.listen.address.parse::<IpAddr>();
    if bound.is_ok_and(|ip| !ip.is_unspecified()) {
        names.push(config.listen.address.clone());
    }
    names.extend(config.tls.names.iter().cloned());
    names.sort();
    names.dedup();
    names
}

/// Opens identity: users, sessions, machines.
pub(super) async fn auth(
    config: &Config,
    store: SharedStore,
    authorities: Option<Authorities>,
) -> anyhow::Result<Auth> {
    let public_url = match config.auth.public_url.as_str() {
        "" => None,
        text => Some(text.parse().context("auth.public_url")?),
    };
    let options = selvage_auth::Options {
        idle: config.auth.idle.0,
        absolute: config.auth.absolute.0,
        password_login: config.auth.password_login,
        oidc: config.auth.oidc.clone(),
        public_url,
        shares_store: config.store.kind == StoreKind::Etcd,
        ..selvage_auth::Options::default()
    };
    let authority = authorities
        .map(|authorities| -> Arc<dyn CertificateAuthority> { Arc::new(Authority(authorities)) });
    Auth::open(store, options, authority).await.context("auth")
}

/// Makes the first administrator on the first start.
///
/// The password is in its file before the user is in the store: a start that
/// is killed between the two leaves nobody locked out.
pub(super) async fn first_administrator(
    config: &Config,
    auth: &Auth,
) -> anyhow::Result<Option<GeneratedPassword>> {
    if auth.has_users() {
        return Ok(None);
    }
    let path = password_file(config);
    let password = match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => GeneratedPassword::kept(text.trim()),
        Ok(_) => GeneratedPassword::generate(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => GeneratedPassword::generate(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    selvage_files::replace(&path, format!("{}\n", password.expose()).as_bytes(), 0o600)
        .with_context(|| path.display().to_string())?;
    let made = auth.bootstrap_admin(&password).await.context("first administrator")?;
    Ok(made.then_some(password))
}

/// Returns the path of the first administrator's password.
pub(super) fn password_file(config: &Config) -> PathBuf {
    config.data.join(PASSWORD_FILE)
}

/// The CA's answer, as auth wants to see it.
fn told(signed: Result<pki::Signed, pki::Error>) -> Result<Signed, SignError> {
    let signed = signed.map_err(|error| {
        if error.code() == selvage_api::Code::InvalidArgument {
            SignError::BadRequest(error.to_string())
        } else {
            SignError::Failed(Box::new(error))
        }
    })?;
    let not_after = jiff::Timestamp::from_second(signed.not_after)
        .map_err(|error| SignError::Failed(Box::new(error)))?;
    Ok(Signed { certificate_pem: signed.certificate_pem, not_after })
}

/// The authorities, as auth wants to see them.
struct Authority(Authorities);

impl CertificateAuthority for Authority {
    fn sign(
        &self,
        csr_pem: &str,
        machine: &Machine,
        names: &[String],
    ) -> Result<Signed, SignError> {
        told(self.0.sign_machine_for(csr_pem, machine, names, pki::MACHINE_LIFETIME))
    }

    fn sign_person(
        &self,
        csr_pem: &str,
        name: &str,
        lifetime: Duration,
    ) -> Result<Signed, SignError> {
        told(self.0.signer().sign_person(csr_pem, name, lifetime))
    }

    fn ca_pem(&self) -> String {
        self.0.pem()
    }

    fn ca_sha256(&self) -> String {
        self.0.signer().sha256()
    }

    fn chain_pem(&self) -> String {
        self.0.chain_pem()
    }

    fn authorities(&self) -> Option<Authorities> {
        Some(self.0.clone())
    }
}
