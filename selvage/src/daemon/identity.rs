//! The keys of a process, who may log in, and the first who may.

use std::{fs, io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use selvage_api::edgeproto::{CloudletKey, OperatorKey};
use selvage_auth::{Auth, CertificateAuthority, GeneratedPassword, SignError, Signed};
use selvage_edge::cloudlet_domain;
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

/// Returns the names by which clients on this machine and around it reach us.
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
    if config.crm.https
        && let Some((operator, name)) = config.crm.cloudlet.split_once('/')
    {
        names.extend(names_of_cloudlet(operator, name, &zones(config)));
    }
    names.sort();
    names.dedup();
    names
}

/// Zones in which instances have their names.
fn zones(config: &Config) -> Vec<String> {
    let root = &config.controller.root_domain;
    [root].into_iter().chain(&config.dns.zones).cloned().collect()
}

/// Names of all that runs on a cloudlet, for the certificate with which its
/// ports speak TLS.
fn names_of_cloudlet(operator: &str, name: &str, zones: &[String]) -> Vec<String> {
    let operator_key = Some(OperatorKey { name: operator.to_owned() });
    let key = CloudletKey { operator_key, name: name.to_owned() };
    let domains = zones.iter().map(|zone| cloudlet_domain(&key, zone.trim_end_matches('.')));
    let names = domains.flat_map(|domain| [format!("*.{domain}"), domain]);
    names.filter(|name| pki::is_server_name(name)).collect()
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
    let authority = authorities.map(|authorities| -> Arc<dyn CertificateAuthority> {
        Arc::new(Authority { authorities, zones: zones(config) })
    });
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
fn to_signed(signed: Result<pki::Signed, pki::Error>) -> Result<Signed, SignError> {
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
struct Authority {
    authorities: Authorities,
    zones: Vec<String>,
}

impl CertificateAuthority for Authority {
    fn sign(
        &self,
        csr_pem: &str,
        machine: &Machine,
        names: &[String],
    ) -> Result<Signed, SignError> {
        let mut names = names.to_vec();
        if let Machine::Cloudlet { operator, name } = machine {
            names.extend(names_of_cloudlet(operator, name, &self.zones));
        }
        let signed =
            self.authorities.sign_machine_for(csr_pem, machine, &names, pki::MACHINE_LIFETIME);
        to_signed(signed)
    }

    fn sign_person(
        &self,
        csr_pem: &str,
        name: &str,
        lifetime: Duration,
    ) -> Result<Signed, SignError> {
        to_signed(self.authorities.signer().sign_person(csr_pem, name, lifetime))
    }

    fn ca_pem(&self) -> String {
        self.authorities.pem()
    }

    fn ca_sha256(&self) -> String {
        self.authorities.signer().sha256()
    }

    fn chain_pem(&self) -> String {
        self.authorities.chain_pem()
    }

    fn authorities(&self) -> Option<Authorities> {
        Some(self.authorities.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cloudlet_speaks_for_names_of_its_own_and_no_others() {
        let zones = ["edge.example.".to_owned(), "shop.example".to_owned()];
        let names = names_of_cloudlet("AT&T Inc.", "Dallas_1", &zones);
        let expected = [
            "*.dallas-1.attinc.edge.example",
            "dallas-1.attinc.edge.example",
            "*.dallas-1.attinc.shop.example",
            "dallas-1.attinc.shop.example",
        ];
        assert_eq!(names, expected);
        // A name that no certificate can contain must not keep a machine from
        // joining.
        assert!(names_of_cloudlet("op", "wölk", &zones[..1]).is_empty());
        assert!(names_of_cloudlet("op", "&", &zones[..1]).is_empty());
    }

    #[test]
    fn a_machine_that_joins_as_a_cloudlet_gets_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let authorities = Authorities::open_or_create(folder.path()).unwrap();
        let authority = Authority { authorities, zones: vec!["edge.example".into()] };
        let request = pki::KeyRequest::new().unwrap();
        let sans = |machine: &str| {
            let machine = Machine::parse(machine).unwrap();
            let names = ["192.0.2.1".to_owned()];
            let signed = authority.sign(request.csr_pem(), &machine, &names).unwrap();
            let (_, pem) =
                x509_parser::pem::parse_x509_pem(signed.certificate_pem.as_bytes()).unwrap();
            let parsed = pem.parse_x509().unwrap();
            let found = parsed.subject_alternative_name().unwrap().unwrap();
            let names = found.value.general_names.iter().filter_map(|name| match name {
                x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
                _ => None,
            });
            names.collect::<Vec<_>>()
        };
        assert_eq!(sans("cloudlet/op/site"), ["*.site.op.edge.example", "site.op.edge.example"]);
        assert!(sans("node/site").is_empty());
    }
}
