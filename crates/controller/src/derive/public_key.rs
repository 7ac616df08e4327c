//! Public keys of developers: PEM (PKIX, or PKCS #1 of RSA) or a line of
//! OpenSSH's `authorized_keys`.

use base64::{
    Engine,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use x509_parser::{
    prelude::FromDer, public_key::PublicKey, public_key::RSAPublicKey, x509::SubjectPublicKeyInfo,
};

use super::{Error, Result};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const ED25519: &str = "1.3.101.112";

/// Types of OpenSSH keys with the number of values that follow the type.
const SSH_TYPES: [(&str, usize); 8] = [
    ("ssh-rsa", 2),
    ("ssh-dss", 4),
    ("ssh-ed25519", 1),
    ("ecdsa-sha2-nistp256", 2),
    ("ecdsa-sha2-nistp384", 2),
    ("ecdsa-sha2-nistp521", 2),
    ("sk-ssh-ed25519@openssh.com", 2),
    ("sk-ecdsa-sha2-nistp256@openssh.com", 3),
];

/// Checks that the text is a key that can be used; the empty text is none.
pub(crate) fn check(text: &str) -> Result<()> {
    let text = text.trim();
    if text.is_empty() {
        Ok(())
    } else if text.starts_with("---- BEGIN SSH2") {
        Err(Error::invalid("ssh2 key format not supported"))
    } else if text.starts_with("-----BEGIN") {
        check_pem(text)
    } else if text.lines().any(is_ssh_key) {
        Ok(())
    } else {
        Err(Error::invalid("failed to parse public key: ssh: no key found"))
    }
}

fn check_pem(text: &str) -> Result<()> {
    let (label, der) = decode_pem(text).ok_or_else(|| Error::invalid("invalid PEM passed"))?;
    match label {
        "PUBLIC KEY" if is_pkix(&der) => Ok(()),
        "PUBLIC KEY" => Err(Error::invalid("x509.parse pki public key")),
        "RSA PUBLIC KEY" if is_pkcs1(&der) => Ok(()),
        "RSA PUBLIC KEY" => Err(Error::invalid("x509.parse rsa public key")),
        other => Err(Error::invalid(format!("Unsupported key tpe \"{other}\""))),
    }
}

/// Label and content of the block at the beginning of the text.
fn decode_pem(text: &str) -> Option<(&str, Vec<u8>)> {
    let (label, rest) = text.strip_prefix("-----BEGIN ")?.split_once("-----")?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    // What stands before an empty line are headers, each with a colon.
    let body = match body.trim_start_matches(['\r', '\n']).split_once("\n\n") {
        Some((headers, body)) if headers.contains(':') => body,
        _ => body,
    };
    let letters: String = body.chars().filter(|letter| !letter.is_ascii_whitespace()).collect();
    Some((label, BASE64.decode(letters).ok()?))
}

fn is_pkix(der: &[u8]) -> bool {
    let Ok(([], info)) = SubjectPublicKeyInfo::from_der(der) else { return false };
    match info.parsed() {
        Ok(PublicKey::RSA(key)) => key.key_size() > 0,
        Ok(PublicKey::EC(_) | PublicKey::DSA(_)) => true,
        Ok(PublicKey::Unknown(key)) => {
            info.algorithm.algorithm.to_id_string() == ED25519 && key.len() == 32
        }
        _ => false,
    }
}

fn is_pkcs1(der: &[u8]) -> bool {
    matches!(RSAPublicKey::from_der(der), Ok(([], key)) if key.key_size() > 0)
}

/// `[options] type base64 [comment]`. Options may hold blanks in quotes.
fn is_ssh_key(line: &str) -> bool {
    let line = line.trim();
    if line.starts_with('#') {
        return false;
    }
    is_type_and_blob(line) || skip_options(line).is_some_and(is_type_and_blob)
}

fn skip_options(line: &str) -> Option<&str> {
    let mut quoted = false;
    let mut previous = ' ';
    for (at, letter) in line.char_indices() {
        match letter {
            '"' if previous != '\\' => quoted = !quoted,
            ' ' | '\t' if !quoted => return Some(line[at..].trim_start()),
            _ => {}
        }
        previous = letter;
    }
    None
}

fn is_type_and_blob(text: &str) -> bool {
    let mut words = text.split_ascii_whitespace();
    let (Some(name), Some(blob)) = (words.next(), words.next()) else { return false };
    let Some((_, values)) = SSH_TYPES.iter().find(|(known, _)| *known == name) else {
        return false;
    };
    let Some(fields) = BASE64.decode(blob).ok().and_then(|blob| ssh_fields(&blob)) else {
        return false;
    };
    fields.first().is_some_and(|inner| inner == name.as_bytes())
        && fields.len() == values + 1
        && fields.iter().all(|field| !field.is_empty())
        && (name != "ssh-ed25519" || fields[1].len() == 32)
}

/// The values of a blob, each with its length in front.
fn ssh_fields(mut blob: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut fields = Vec::new();
    while !blob.is_empty() {
        let (length, rest) = blob.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (field, rest) = rest.split_at_checked(length)?;
        fields.push(field.to_vec());
        blob = rest;
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const PKIX: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAs3C9NtqWo71CjH3SSJBH
7ZPuzvpr5yCB5laqFL56TxHgkUPuxiCAejmFJwdIalIc8M9jYvvxoBoAlayJVvlh
e4ZQSxaWrpNBZqIUwPtDwx5IwiIUcg8I6fwwvwWZD1DSQWmCHyLz9yDB2nVILOH7
Uec6popf4Ewc4dJc7dNcabC4p7djkZ7b2cRc7OlgA7IDQAK6Ys96VlCvaK2FbBzu
7gecuECnT9RDpmgx+KeyfcfdmxOmoOx6DdQ3QLafsVuH1xtgXO2jLDSMVfk/db+B
lt7p+wn+VgTTjxB/ClFWF0dwSZSxwFK+LDoOZaJpvFqshJ6MgdQ0DCx6rse7pZ8y
cwIDAQAB
-----END PUBLIC KEY-----
";

    const PKCS1: &str = "\
-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEAs3C9NtqWo71CjH3SSJBH7ZPuzvpr5yCB5laqFL56TxHgkUPuxiCA
ejmFJwdIalIc8M9jYvvxoBoAlayJVvlhe4ZQSxaWrpNBZqIUwPtDwx5IwiIUcg8I
6fwwvwWZD1DSQWmCHyLz9yDB2nVILOH7Uec6popf4Ewc4dJc7dNcabC4p7djkZ7b
2cRc7OlgA7IDQAK6Ys96VlCvaK2FbBzu7gecuECnT9RDpmgx+KeyfcfdmxOmoOx6
DdQ3QLafsVuH1xtgXO2jLDSMVfk/db+Blt7p+wn+VgTTjxB/ClFWF0dwSZSxwFK+
LDoOZaJpvFqshJ6MgdQ0DCx6rse7pZ8ycwIDAQAB
-----END RSA PUBLIC KEY-----
";

    const ELLIPTIC: &str = "\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEH+ES5T/0ZRFXtZ65lxIOSCQZq9hX
DV0Rk292vCvX2xPB19eSJdbazYTLQcu8DYbOLZDrI9pDLHCQKbUT1/E8rA==
-----END PUBLIC KEY-----
";

    const SSH_RSA: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQD0qzYkTnY3yyrq+WAhWSm2X4ui5a74TbAJ7Nb41v7O49gh\
        a0r6w37mlySYUL1Y8oYIfuL8xQ/DUQc88s4pnj1rda/mfQhNHAxnRTxUZkbr9h+u1AkbCkAsmCmC\
        FqbamOaHN3/BTbayyqU+86LUVU/kfWJZjJncHowvyP61oUCg/Wwh9Fia51Of2MRmHRnnjUNcGNZY\
        7C0u/kn0FkMJyRZoSyoOKVqPKPtXlNCRmOgSs95u1XIwtS3/H99QLEDZOCVKE29NH8wIL76nzeHZ\
        zW96IwoS3xYGmZ1EnH3emTC4X8b8cClwyKOVtjO5kJffZh44GSviorwfYh7lOA8V6nw9";

    const SSH_ED25519: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOlxCc/DLI5gdYdvtsUJBjnIY7einHuYCiBZo6qwVfgE";

    fn refusal(text: &str) -> String {
        check(text).unwrap_err().to_string()
    }

    #[test]
    fn keys_of_every_format_are_accepted() {
        for key in [PKIX, PKCS1, ELLIPTIC, SSH_RSA, SSH_ED25519, "", "\n"] {
            check(key).unwrap();
        }
        check(&PKIX.replace('\n', "\r\n")).unwrap();
        check(&format!("{SSH_RSA} somebody@somewhere\n")).unwrap();
        check(&format!("# mine\nno-pty,command=\"echo \\\"a b\\\"\" {SSH_ED25519}")).unwrap();
    }

    #[test]
    fn refusals_have_the_texts_of_the_original() {
        assert_eq!(
            refusal("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n---- END SSH2 PUBLIC KEY ----"),
            "ssh2 key format not supported"
        );
        assert_eq!(refusal(&PKIX.replace("-----END", "-----EMD")), "invalid PEM passed");
        assert_eq!(refusal(&PKIX.replace("MIIB", "MI*B")), "invalid PEM passed");
        assert_eq!(refusal(&PKIX.replace("MIIB", "MIIC")), "x509.parse pki public key");
        assert_eq!(
            refusal(&PKIX.replace("PUBLIC KEY", "RSA PUBLIC KEY")),
            "x509.parse rsa public key"
        );
        assert_eq!(
            refusal(&PKCS1.replace("RSA PUBLIC KEY", "PUBLIC KEY")),
            "x509.parse pki public key"
        );
        assert_eq!(
            refusal(&PKIX.replace("PUBLIC KEY", "CERTIFICATE")),
            "Unsupported key tpe \"CERTIFICATE\""
        );
        let none = "failed to parse public key: ssh: no key found";
        for text in ["nonsense", "ssh-rsa", "ssh-rsa AAAA", &SSH_RSA.replace("ssh-rsa", "ssh-dss")]
        {
            assert_eq!(refusal(text), none);
        }
        assert_eq!(refusal(&SSH_ED25519[..SSH_ED25519.len() - 4]), none);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(
            text in "(-----BEGIN (RSA )?PUBLIC KEY-----\n)?[A-Za-z0-9+/=\n]{0,80}(-----END PUBLIC KEY-----)?",
            any in ".*",
            der in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = check(&text);
            let _ = check(&any);
            let der = BASE64.encode(der);
            let _ = check(&format!("-----BEGIN PUBLIC KEY-----\n{der}\n-----END PUBLIC KEY-----"));
            let _ = check(&format!("ssh-rsa {der}"));
        }
    }
}
