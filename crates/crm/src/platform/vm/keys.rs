//! A developer's public key as OpenSSH writes it. The controller takes it as
//! PEM or as a line of `authorized_keys`.

use base64::{Engine, prelude::BASE64_STANDARD};
use x509_parser::{
    prelude::FromDer,
    public_key::{PublicKey, RSAPublicKey},
    x509::SubjectPublicKeyInfo,
};

use crate::{Error, Result};

const ED25519: &str = "1.3.101.112";
/// Curves with OpenSSH's names for them.
const CURVES: [(&str, &str); 3] = [
    ("1.2.840.10045.3.1.7", "nistp256"),
    ("1.3.132.0.34", "nistp384"),
    ("1.3.132.0.35", "nistp521"),
];

/// The key as a line; none where there is none.
pub(super) fn line(text: &str) -> Result<Option<String>> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if !text.starts_with("-----BEGIN") {
        let mut lines = text.lines().map(str::trim);
        let key = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        return Ok(key.map(str::to_owned));
    }
    let converted = converted(text).ok_or_else(|| {
        Error::invalid("auth_public_key", "is not a key that OpenSSH knows: use RSA, EC or Ed25519")
    })?;
    Ok(Some(converted))
}

fn converted(pem: &str) -> Option<String> {
    let (label, rest) = pem.strip_prefix("-----BEGIN ")?.split_once("-----")?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let body: String = body.chars().filter(|letter| !letter.is_ascii_whitespace()).collect();
    let der = BASE64_STANDARD.decode(body).ok()?;
    let (kind, parts) = match label {
        "RSA PUBLIC KEY" => rsa(&RSAPublicKey::from_der(&der).ok()?.1),
        "PUBLIC KEY" => {
            let info = SubjectPublicKeyInfo::from_der(&der).ok()?.1;
            match info.parsed().ok()? {
                PublicKey::RSA(key) => rsa(&key),
                PublicKey::EC(point) => {
                    let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?.to_id_string();
                    let name = CURVES.iter().find(|(id, _)| *id == curve)?.1;
                    (format!("ecdsa-sha2-{name}"), vec![name.into(), point.data().to_vec()])
                }
                PublicKey::Unknown(key)
                    if info.algorithm.algorithm.to_id_string() == ED25519 && key.len() == 32 =>
                {
                    ("ssh-ed25519".to_owned(), vec![key.to_vec()])
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    let mut blob = Vec::new();
    for part in std::iter::once(kind.as_bytes()).chain(parts.iter().map(Vec::as_slice)) {
        blob.extend(u32::try_from(part.len()).ok()?.to_be_bytes());
        blob.extend(part);
    }
    Some(format!("{kind} {}", BASE64_STANDARD.encode(blob)))
}

fn rsa(key: &RSAPublicKey<'_>) -> (String, Vec<Vec<u8>>) {
    ("ssh-rsa".to_owned(), vec![number(key.exponent), number(key.modulus)])
}

/// Positive, and as short as can be.
fn number(bytes: &[u8]) -> Vec<u8> {
    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let mut number = bytes[first..].to_vec();
    if number.first().is_some_and(|byte| byte & 0x80 != 0) {
        number.insert(0, 0);
    }
    number
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    // Each pair was made with ssh-keygen, the PEM with `ssh-keygen -e -m`.
    const KEYS: [(&str, &str); 3] = [
        (
            "-----BEGIN PUBLIC KEY-----\n\
             MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAvhNoTTmyX6xFsGPTQtcv\n\
             8DpmdLVCGzvebNOSzw5SB+P/Oamdpq4doCQT89kWfvFEJ+WgRuWxH8LCCwZxchTo\n\
             rglRhPnSiWLx8eakilHod02UVpbgEWkGZP+dcOCxW7BckP4FL9nzHa0tlFAFPRRS\n\
             bjD7ehg+CQpZjODaoi1gTwWFQuHaqQ7GT1UwMHtSo7fzQMpzxaYGno0hjlp5neRo\n\
             Gxdefwfgw8ZAcNygl5sG4Lgdq//qkQbd+UgvGsf3olfA/bUxiaxZAlrH7FRgmz7d\n\
             5Sdi/R9rFWcNDs/nwa7dnveakUFKEKT/npftjLWv9EO0Q73Tw5SokDTbzqrDFvLk\n\
             awIDAQAB\n\
             -----END PUBLIC KEY-----",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC+E2hNObJfrEWwY9NC1y/wOmZ0tUIbO95s05LPDlIH\
             4/85qZ2mrh2gJBPz2RZ+8UQn5aBG5bEfwsILBnFyFOiuCVGE+dKJYvHx5qSKUeh3TZRWluARaQZk/51w\
             4LFbsFyQ/gUv2fMdrS2UUAU9FFJuMPt6GD4JClmM4NqiLWBPBYVC4dqpDsZPVTAwe1Kjt/NAynPFpgae\
             jSGOWnmd5GgbF15/B+DDxkBw3KCXmwbguB2r/+qRBt35SC8ax/eiV8D9tTGJrFkCWsfsVGCbPt3lJ2L9\
             H2sVZw0Oz+fBrt2e95qRQUoQpP+el+2Mta/0Q7RDvdPDlKiQNNvOqsMW8uRr",
        ),
        (
            "-----BEGIN RSA PUBLIC KEY-----\n\
             MIIBCgKCAQEAvhNoTTmyX6xFsGPTQtcv8DpmdLVCGzvebNOSzw5SB+P/Oamdpq4d\n\
             oCQT89kWfvFEJ+WgRuWxH8LCCwZxchTorglRhPnSiWLx8eakilHod02UVpbgEWkG\n\
             ZP+dcOCxW7BckP4FL9nzHa0tlFAFPRRSbjD7ehg+CQpZjODaoi1gTwWFQuHaqQ7G\n\
             T1UwMHtSo7fzQMpzxaYGno0hjlp5neRoGxdefwfgw8ZAcNygl5sG4Lgdq//qkQbd\n\
             +UgvGsf3olfA/bUxiaxZAlrH7FRgmz7d5Sdi/R9rFWcNDs/nwa7dnveakUFKEKT/\n\
             npftjLWv9EO0Q73Tw5SokDTbzqrDFvLkawIDAQAB\n\
             -----END RSA PUBLIC KEY-----",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC+E2hNObJfrEWwY9NC1y/wOmZ0tUIbO95s05LPDlIH\
             4/85qZ2mrh2gJBPz2RZ+8UQn5aBG5bEfwsILBnFyFOiuCVGE+dKJYvHx5qSKUeh3TZRWluARaQZk/51w\
             4LFbsFyQ/gUv2fMdrS2UUAU9FFJuMPt6GD4JClmM4NqiLWBPBYVC4dqpDsZPVTAwe1Kjt/NAynPFpgae\
             jSGOWnmd5GgbF15/B+DDxkBw3KCXmwbguB2r/+qRBt35SC8ax/eiV8D9tTGJrFkCWsfsVGCbPt3lJ2L9\
             H2sVZw0Oz+fBrt2e95qRQUoQpP+el+2Mta/0Q7RDvdPDlKiQNNvOqsMW8uRr",
        ),
        (
            "-----BEGIN PUBLIC KEY-----\n\
             MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEZ7icnCIk4XBdLRp/wlUuKxW49LpE\n\
             Q0C3nLMsGZstQU8Yhj0uT5Mjyr/KtpqaLYp6DR60rRjDdPnynysn9sfC4g==\n\
             -----END PUBLIC KEY-----",
            "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBGe4nJwi\
             JOFwXS0af8JVLisVuPS6RENAt5yzLBmbLUFPGIY9Lk+TI8q/yraami2Keg0etK0Yw3T58p8rJ/bHwuI=",
        ),
    ];

    #[test]
    fn pem_becomes_what_openssh_would_write() {
        for (pem, ssh) in KEYS {
            assert_eq!(line(pem).unwrap().as_deref(), Some(ssh));
        }
    }

    #[test]
    fn lines_are_taken_as_they_are_and_nonsense_is_refused() {
        assert_eq!(line("  ").unwrap(), None);
        let ssh = KEYS[0].1;
        assert_eq!(line(&format!("# mine\n{ssh} me\n")).unwrap(), Some(format!("{ssh} me")));
        let error = line("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----").unwrap_err();
        assert!(error.to_string().starts_with("auth_public_key: "), "{error}");
    }
}
