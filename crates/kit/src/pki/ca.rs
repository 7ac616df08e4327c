//! The CA of an installation.

use std::{
    fmt, fs, io,
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls_pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, ServerName, pem::PemObject,
};
use x509_parser::prelude::{FromDer, X509CertificationRequest};
use zeroize::Zeroizing;

use super::{
    BACKDATE, CA_LIFETIME, Error, MACHINE_LIFETIME, SERVER_LIFETIME, Validity, chain, files,
    files::failed, fingerprint, machine, parse, person,
};
use crate::{
    clock::{Clock, SystemClock},
    identity::Machine,
    seal::Sealer,
};

const KEY: &str = "ca.key";
const CERTIFICATE: &str = "ca.crt";
/// A request with a key and a few names is a tenth of this.
const REQUEST_LIMIT: usize = 64 * 1024;

/// Signs for servers and machines.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
    path: PathBuf,
    validity: Validity,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca").field("sha256", &self.sha256()).finish_non_exhaustive()
    }
}

/// A server's certificate with its key.
pub struct Issued {
    /// The server's certificate and the CA's, so that a client which knows
    /// only the CA's digest can check both.
    pub chain_pem: String,
    /// The private key.
    pub key_pem: Zeroizing<String>,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("chain_pem", &self.chain_pem).finish_non_exhaustive()
    }
}

/// A machine's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The certificate.
    pub certificate_pem: String,
    /// Its last second, since 1970.
    pub not_after: i64,
}

impl Ca {
    /// Opens the CA in the directory, or makes one if the directory is empty
    /// or not there. Of several processes that do so at once one makes it and
    /// all open it.
    pub fn open_or_create(directory: &Path) -> Result<Self, Error> {
        Self::open_or_create_with(directory, Arc::new(SystemClock))
    }

    /// The same, with a clock.
    pub fn open_or_create_with(directory: &Path, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        Ok(Self::open_all(directory, clock)?.swap_remove(0))
    }

    /// Opens all authorities of the directory, the one that signs first; makes
    /// one where there is none.
    pub(super) fn open_all(directory: &Path, clock: Arc<dyn Clock>) -> Result<Vec<Self>, Error> {
        if !holds_a_ca(directory)? {
            create(directory, clock.as_ref())?;
        }
        let (key_path, path) = (directory.join(KEY), directory.join(CERTIFICATE));
        check_directory(directory)?;
        for (file, other) in [(&key_path, &path), (&path, &key_path)] {
            if !file.try_exists().map_err(failed(file, "examine"))? {
                let (path, other) = (file.display().to_string(), other.display().to_string());
                return Err(Error::Missing { path, other });
            }
        }
        let place = path.display().to_string();
        let keys = read_keys(&key_path)?;
        let certificates = chain(&place, &files::read(&path)?)?;
        let mut all = Vec::new();
        for (index, der) in certificates.into_iter().enumerate() {
            let key = keys.iter().find(|key| belongs(key, &place, &der));
            match key {
                Some(key) => all.push(Self::new(key, der, path.clone(), Arc::clone(&clock))?),
                // A certificate without its key signs nothing.
                None if index > 0 => {}
                None => {
                    parse(&place, &der)?;
                    let key = key_path.display().to_string();
                    return Err(Error::Mismatch { key, certificate: place });
                }
            }
        }
        Ok(all)
    }

    fn new(
        key: &PrivateKeyDer<'static>,
        der: CertificateDer<'static>,
        path: PathBuf,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let place = path.display().to_string();
        let certificate = parse(&place, &der)?;
        if !certificate.is_ca() {
            return Err(Error::NotACa { path: place });
        }
        let validity = Validity::of(&certificate);
        validity.check(&place, clock.now())?;
        let key = KeyPair::try_from(key).map_err(Error::Sign)?;
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(Error::Sign)?;
        Ok(Self { issuer, pem: pem(&der), der, path, validity, clock })
    }

    /// Makes an authority that takes over from this one some day.
    pub fn next(&self) -> Result<Self, Error> {
        let (key, params) = new_authority(self.clock.as_ref())?;
        let der = params.self_signed(&key).map_err(Error::Sign)?.der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|_| self.unusable())?;
        Self::new(&key, der, self.path.clone(), Arc::clone(&self.clock))
    }

    /// Key of the next authority, sealed so that only one who has the key of this
    /// one can open it.
    pub fn seal_key_of(&self, next: &Self) -> Result<Vec<u8>, Error> {
        let key = Zeroizing::new(next.issuer.key().serialize_der());
        self.sealer()?.seal(&next.sha256(), key).map_err(|_| self.unusable())
    }

    /// Opens what [`Ca::seal_key_of`] sealed, for the authority of this
    /// certificate.
    pub fn open_next(&self, certificate_pem: &str, sealed_key: &[u8]) -> Result<Self, Error> {
        let place = "certificate of the next CA";
        let der = chain(place, certificate_pem.as_bytes())?.swap_remove(0);
        let key = self.sealer()?.open(&fingerprint(&der), sealed_key);
        let key = key.map_err(|_| Error::SealedForAnother { path: self.key_place() })?;
        let key = PrivateKeyDer::try_from(key.to_vec()).map_err(|_| self.unusable())?;
        if !belongs(&key, place, &der) {
            return Err(Error::Mismatch { key: self.key_place(), certificate: place.to_owned() });
        }
        Self::new(&key, der, self.path.clone(), Arc::clone(&self.clock))
    }

    fn sealer(&self) -> Result<Sealer, Error> {
        let secret = Zeroizing::new(self.issuer.key().serialize_der());
        Sealer::derive(&secret, "selvage: key of the next CA").map_err(|_| self.unusable())
    }

    fn unusable(&self) -> Error {
        Error::Key { place: self.key_place() }
    }

    fn key_place(&self) -> String {
        self.path.with_file_name(KEY).display().to_string()
    }

    /// Signs the key of another authority, so that whoever believes only this
    /// one believes that one's certificates too. Nothing where the other's name
    /// is not one that we give.
    pub(super) fn introduce(&self, other: &Self) -> Result<Option<CertificateDer<'static>>, Error> {
        let parsed = parse("CA certificate", &other.der)?;
        let mut names = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        let name = names.next().filter(|_| parsed.subject().iter().count() == 1);
        let Some(name) = name else { return Ok(None) };
        let mut params = params(Validity {
            from: self.validity.from.max(other.validity.from),
            until: self.validity.until.min(other.validity.until),
        });
        authority(&mut params, name, 0);
        params.use_authority_key_identifier_extension = true;
        let introduced = params.signed_by(other.issuer.key(), &self.issuer).map_err(Error::Sign)?;
        let introduced = introduced.der().clone();
        let same =
            parse("CA certificate", &introduced)?.subject().as_raw() == parsed.subject().as_raw();
        Ok(same.then_some(introduced))
    }

    /// The CA's private key, PEM.
    pub(super) fn key_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.issuer.key().serialize_pem())
    }

    /// Name of the CA.
    pub fn name(&self) -> String {
        parse("CA certificate", &self.der)
            .map_or_else(|_| String::new(), |parsed| parsed.subject().to_string())
    }

    /// Its first and its last second, since 1970.
    pub fn life(&self) -> (i64, i64) {
        (self.validity.from, self.validity.until)
    }

    /// Returns whether this is its name, DER.
    pub fn is_named(&self, name: &[u8]) -> bool {
        parse("CA certificate", &self.der).is_ok_and(|parsed| parsed.subject().as_raw() == name)
    }

    /// The CA's certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The CA's certificate, undressed.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The file with the CA's certificate.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The digest of the certificate in hex, by which join tokens name the CA.
    pub fn sha256(&self) -> String {
        fingerprint(&self.der)
    }

    /// The clock the CA goes by.
    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Makes a key and a certificate for a server with these DNS names and IP
    /// addresses.
    pub fn issue_server<S: AsRef<str>>(&self, names: &[S]) -> Result<Issued, Error> {
        self.issue_server_with(names, &self.pem)
    }

    /// The same, with these certificates after the server's own.
    pub(super) fn issue_server_with<S: AsRef<str>>(
        &self,
        names: &[S],
        chain_pem: &str,
    ) -> Result<Issued, Error> {
        let mut params = self.leaf(SERVER_LIFETIME)?;
        params.subject_alt_names =
            names.iter().map(|name| server_name(name.as_ref())).collect::<Result<_, _>>()?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if let Some(first) = names.first() {
            name_subject(&mut params, first.as_ref());
        }
        let key = KeyPair::generate().map_err(Error::Sign)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(Error::Sign)?;
        Ok(Issued {
            chain_pem: format!("{}{chain_pem}", pem(certificate.der())),
            key_pem: Zeroizing::new(key.serialize_pem()),
        })
    }

    /// Signs a machine's key. Nothing but the key is taken from the request;
    /// that the sender has the private half is checked by its signature.
    pub fn sign_machine(&self, csr_pem: &str, machine: &Machine) -> Result<Signed, Error> {
        self.sign_machine_for(csr_pem, machine, &[], MACHINE_LIFETIME)
    }

    /// The same, for a machine that also serves under these DNS names and IP
    /// addresses, and for another time than [`MACHINE_LIFETIME`].
    pub fn sign_machine_for(
        &self,
        csr_pem: &str,
        machine: &Machine,
        names: &[String],
        lifetime: Duration,
    ) -> Result<Signed, Error> {
        let key = requested_key(csr_pem)?;
        let uri = machine::uri(machine)?;
        let mut params = self.leaf(lifetime)?;
        let not_after = params.not_after.unix_timestamp();
        let uri = SanType::URI(uri.as_str().try_into().map_err(|_| Error::MachineName(uri))?);
        let names = names.iter().map(|name| server_name(name));
        params.subject_alt_names =
            std::iter::once(Ok(uri)).chain(names).collect::<Result<_, _>>()?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        name_subject(&mut params, &machine.to_string());
        let certificate = params.signed_by(&key, &self.issuer).map_err(Error::Sign)?;
        Ok(Signed { certificate_pem: pem(certificate.der()), not_after })
    }

    /// Signs a person's key, in this name and for clients alone: nobody serves
    /// with it.
    pub fn sign_person(
        &self,
        csr_pem: &str,
        name: &str,
        lifetime: Duration,
    ) -> Result<Signed, Error> {
        let key = requested_key(csr_pem)?;
        let uri = person::uri(name)?;
        let mut params = self.leaf(lifetime)?;
        let not_after = params.not_after.unix_timestamp();
        let uri = SanType::URI(uri.as_str().try_into().map_err(|_| Error::PersonName(uri))?);
        params.subject_alt_names = vec![uri];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        name_subject(&mut params, name);
        let certificate = params.signed_by(&key, &self.issuer).map_err(Error::Sign)?;
        Ok(Signed { certificate_pem: pem(certificate.der()), not_after })
    }

    /// Parameters that all certificates of ours have in common. None outlives
    /// the CA.
    fn leaf(&self, lifetime: Duration) -> Result<CertificateParams, Error> {
        self.validity.check(&self.path.display().to_string(), self.clock.now())?;
        let now = self.clock.now().as_second();
        let lifetime = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let mut params = params(Validity {
            from: (now - BACKDATE.as_secs() as i64).max(self.validity.from),
            until: now.saturating_add(lifetime).min(self.validity.until),
        });
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

fn params(validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(validity.from.unsigned_abs());
    params.not_after = epoch + Duration::from_secs(validity.until.unsigned_abs());
    params.distinguished_name = DistinguishedName::new();
    let mut serial: [u8; 16] = rand::random();
    // Positive, and always of the same length.
    serial[0] = serial[0] & 0x3f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params
}

/// For people who look at a certificate; nothing reads it. Longer names than
/// X.509 allows here stand among the alternative names only.
fn name_subject(params: &mut CertificateParams, name: &str) {
    if name.chars().count() <= 64 {
        params.distinguished_name.push(DnType::CommonName, name);
    }
}

/// Returns whether a server can be called that: a DNS name or an IP address.
pub fn is_server_name(name: &str) -> bool {
    server_name(name).is_ok()
}

fn server_name(name: &str) -> Result<SanType, Error> {
    let wrong = || Error::ServerName(name.to_owned());
    let concrete = name.strip_prefix("*.").unwrap_or(name);
    match ServerName::try_from(concrete).map_err(|_| wrong())? {
        ServerName::IpAddress(ip) if concrete == name => Ok(SanType::IpAddress(IpAddr::from(ip))),
        ServerName::DnsName(_) => Ok(SanType::DnsName(name.try_into().map_err(|_| wrong())?)),
        _ => Err(wrong()),
    }
}

/// The key of a signing request, if the sender has its private half and it is
/// of a kind that we sign. Nothing else of a request counts.
pub fn requested_key(csr_pem: &str) -> Result<SubjectPublicKeyInfo, Error> {
    let wrong = |reason: &str| Error::Request(reason.to_owned());
    if csr_pem.len() > REQUEST_LIMIT {
        return Err(wrong("longer than 64 KiB"));
    }
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
        .map_err(|_| wrong("not PEM with a CERTIFICATE REQUEST in it"))?;
    CertificateSigningRequestParams::from_der(&der).map_err(|error| match error {
        rcgen::Error::InvalidCertificationRequestSignature => {
            wrong("its signature was not made by its key")
        }
        other => Error::Request(other.to_string()),
    })?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|_| wrong("not DER"))?;
    let key = SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
        .map_err(|_| wrong("its kind of key is not known"))?;
    let good =
        [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
    if good.into_iter().any(|algorithm| algorithm == key.algorithm()) {
        Ok(key)
    } else {
        Err(wrong("its key is not ECDSA P-256, ECDSA P-384 or Ed25519"))
    }
}

/// A certificate as PEM.
pub fn pem(der: &CertificateDer<'_>) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let body = BASE64_STANDARD.encode(der);
    let mut pem = String::with_capacity(body.len() + body.len() / 64 + 64);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

fn holds_a_ca(directory: &Path) -> Result<bool, Error> {
    for name in [KEY, CERTIFICATE] {
        let path = directory.join(name);
        if path.try_exists().map_err(failed(&path, "examine"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn check_directory(directory: &Path) -> Result<(), Error> {
    let mode = fs::metadata(directory).map_err(failed(directory, "examine"))?.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(Error::ExposedDirectory { path: directory.display().to_string(), mode });
    }
    Ok(())
}

/// Makes the whole directory elsewhere and renames it. That somebody else was
/// faster is no error.
fn create(directory: &Path, clock: &dyn Clock) -> Result<(), Error> {
    let parent = directory.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed(parent, "create"))?;
    let fresh = files::beside(directory);
    let created = fill(&fresh, clock).and_then(|()| match fs::rename(&fresh, directory) {
        Ok(()) => files::sync_directory(parent),
        Err(_) if holds_a_ca(directory)? => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            Err(Error::Occupied { path: directory.display().to_string() })
        }
        Err(error) => Err(failed(directory, "create")(error)),
    });
    // Gone already if it became the CA.
    let _ = fs::remove_dir_all(&fresh);
    created
}

fn fill(directory: &Path, clock: &dyn Clock) -> Result<(), Error> {
    fs::DirBuilder::new().mode(0o700).create(directory).map_err(failed(directory, "create"))?;
    let (key, params) = new_authority(clock)?;
    let certificate = params.self_signed(&key).map_err(Error::Sign)?;
    let key = Zeroizing::new(key.serialize_pem());
    files::write_new(&directory.join(KEY), 0o600, key.as_bytes())?;
    files::write_new(&directory.join(CERTIFICATE), 0o644, pem(certificate.der()).as_bytes())?;
    files::sync_directory(directory)
}

fn new_authority(clock: &dyn Clock) -> Result<(KeyPair, CertificateParams), Error> {
    let now = clock.now().as_second();
    let mut params = params(Validity {
        from: now - BACKDATE.as_secs() as i64,
        until: now.saturating_add(CA_LIFETIME.as_secs() as i64),
    });
    // Two authorities of ours must not look alike in a list of CAs.
    // Below it stand its own certificates, and one day the next authority.
    authority(&mut params, &format!("Selvage CA {:08x}", rand::random::<u32>()), 1);
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(Error::Sign)?;
    Ok((key, params))
}

fn authority(params: &mut CertificateParams, name: &str, others_below: u8) {
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(others_below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
}

/// The private keys of a file.
fn read_keys(path: &Path) -> Result<Vec<PrivateKeyDer<'static>>, Error> {
    let unusable = || Error::Key { place: path.display().to_string() };
    let text = files::read_private(path, files::OWNER_ONLY)?;
    let keys: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(&text).collect();
    match keys {
        Ok(keys) if !keys.is_empty() => Ok(keys),
        _ => Err(unusable()),
    }
}

/// Returns whether the key is that of the certificate.
fn belongs(key: &PrivateKeyDer<'_>, place: &str, der: &CertificateDer<'_>) -> bool {
    match (KeyPair::try_from(key), parse(place, der)) {
        (Ok(key), Ok(certificate)) => certificate.public_key().raw == key.subject_public_key_info(),
        _ => false,
    }
}

/// Writes the authorities of a directory, the one that signs first. There is
/// no moment at which a certificate is there without its key.
pub(super) fn write_all(all: &[Arc<Ca>], before: &[Arc<Ca>]) -> Result<(), Error> {
    let Some(first) = all.first() else { return Ok(()) };
    let key_path = first.path.with_file_name(KEY);
    let kept: Vec<&Arc<Ca>> =
        before.iter().filter(|ca| !all.iter().any(|one| one.der == ca.der)).collect();
    let keys = |dropped: &[&Arc<Ca>]| {
        let keys = all.iter().chain(dropped.iter().copied()).map(|ca| ca.key_pem());
        keys.fold(Zeroizing::new(String::new()), |mut text, key| {
            text.push_str(&key);
            text
        })
    };
    files::replace(&key_path, 0o600, keys(&kept).as_bytes())?;
    files::replace(&first.path, 0o644, bundle(all).as_bytes())?;
    if !kept.is_empty() {
        files::replace(&key_path, 0o600, keys(&[]).as_bytes())?;
    }
    Ok(())
}

/// Certificates of the authorities, PEM.
pub(super) fn bundle(all: &[Arc<Ca>]) -> String {
    all.iter().map(|ca| ca.pem.as_str()).collect()
}
