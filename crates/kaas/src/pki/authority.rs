//! One certificate authority of a cluster.

use std::{net::IpAddr, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use x509_parser::{extensions::ParsedExtension, pem::parse_x509_pem};
use zeroize::Zeroizing;

use super::{CA_LIFETIME, Error};

/// Clocks of members may be behind by so much.
const BACKDATE: u64 = 5 * 60;

/// Subject, names and usage of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub common_name: String,
    pub organisation: Option<String>,
    pub client: bool,
    pub server: bool,
    /// DNS names and IP addresses.
    pub names: Vec<String>,
    pub lifetime: Duration,
}

/// A certificate with its key, made here for a person.
pub struct Issued {
    pub certificate: String,
    pub key: Zeroizing<String>,
}

/// Signs certificates.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority of that name.
    pub fn create(name: &str, now: u64) -> Result<Self, Error> {
        let mut params = params(now, CA_LIFETIME);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// Reads one that was written.
    pub(super) fn read(certificate: &str, key: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key)?;
        let issuer = Issuer::from_ca_cert_pem(certificate, key)?;
        Ok(Self { certificate: certificate.to_owned(), issuer })
    }

    /// Certificate of the authority, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Key identifier that certificates which it signed name, in hexadecimal digits.
    pub fn key_id(&self) -> Result<String, Error> {
        let unreadable = || Error::Request("an authority cannot be read".into());
        let (_, pem) = parse_x509_pem(self.certificate.as_bytes()).map_err(|_| unreadable())?;
        let parsed = pem.parse_x509().map_err(|_| unreadable())?;
        let id =
            parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(hex::encode(id.0)),
                _ => None,
            });
        id.ok_or_else(unreadable)
    }

    pub(super) fn key(&self) -> Zeroizing<String> {
        Zeroizing::new(self.issuer.key().serialize_pem())
    }

    /// Signs the key of a request. What the certificate says is `leaf`'s alone.
    pub fn sign(&self, csr: &str, leaf: &Leaf, now: u64) -> Result<String, Error> {
        let key = selvage_kit::pki::requested_key(csr)
            .map_err(|error| Error::Request(error.to_string()))?;
        self.certify(&key, leaf, now)
    }

    /// Makes a key and a certificate for it.
    pub fn issue(&self, leaf: &Leaf, now: u64) -> Result<Issued, Error> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = self.certify(&key, leaf, now)?;
        Ok(Issued { certificate, key: Zeroizing::new(key.serialize_pem()) })
    }

    fn certify(&self, key: &impl PublicKeyData, leaf: &Leaf, now: u64) -> Result<String, Error> {
        let mut params = params(now, leaf.lifetime);
        let subject = &mut params.distinguished_name;
        if let Some(organisation) = &leaf.organisation {
            subject.push(DnType::OrganizationName, organisation.as_str());
        }
        subject.push(DnType::CommonName, leaf.common_name.as_str());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let uses = [
            (leaf.client, ExtendedKeyUsagePurpose::ClientAuth),
            (leaf.server, ExtendedKeyUsagePurpose::ServerAuth),
        ];
        params.extended_key_usages =
            uses.into_iter().filter(|(used, _)| *used).map(|(_, purpose)| purpose).collect();
        params.subject_alt_names =
            leaf.names.iter().map(|name| alternative(name)).collect::<Result<_, _>>()?;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }
}

fn alternative(name: &str) -> Result<SanType, Error> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    Ok(SanType::DnsName(name.try_into().map_err(|_| Error::Name(name.to_owned()))?))
}

fn params(now: u64, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(BACKDATE));
    params.not_after = epoch + Duration::from_secs(now).saturating_add(lifetime);
    params.distinguished_name = DistinguishedName::new();
    let mut serial: [u8; 16] = rand::random();
    // Positive, and always of the same length.
    serial[0] = serial[0] & 0x3f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params
}
