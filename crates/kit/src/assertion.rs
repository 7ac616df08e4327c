//! Assertions of callers: what lets a node call other nodes for a person.
//!
//! A node's certificate says which machine it is and nothing about people, so
//! its word for a caller counts nowhere. It shows the caller's token to a
//! controller instead, which signs who wants which method of which machine to
//! be called, by which node and until when. The machine that is called checks
//! this by the authorities that it believes anyway: the certificate of the
//! controller that signed comes along. No controller has to be there for it.
//!
//! The text is a JWT (RFC 7519) signed by ES256, with the certificates in
//! `x5c` and a type of its own, so that no other token is taken for one.

use std::{fmt, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use jiff::Timestamp;
use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode,
};
use rustls_pki_types::CertificateDer;
use selvage_api::Code;
use serde::{Deserialize, Serialize};

use crate::{
    identity::{Delegation, Form, Grant, Identity, Kind, Machine, Refused, Role},
    pki::{self, KeyRequest, Trust},
};

/// Header in which a node passes one on.
pub const HEADER: &str = "selvage-assertion";

/// Time within which a call can begin with one.
pub const LIFETIME: Duration = Duration::from_secs(60);

/// Allowed difference between clocks, in seconds.
const LEEWAY: i64 = 60;

/// Type that tells these from other tokens.
const TYPE: &str = "selvage-caller+jwt";

/// More certificates than lead from a controller to its authority.
const MOST_CERTIFICATES: usize = 8;

/// Why an assertion is not made or not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The caller cannot be vouched for.
    #[error("only people with a token can be vouched for: call through a controller instead")]
    Caller,
    /// A key or certificate cannot be used.
    #[error("an assertion cannot be signed: {0}")]
    Sign(String),
    /// Not an assertion.
    #[error("{HEADER} is not an assertion")]
    Malformed,
    /// Signed by somebody else than a controller.
    #[error("{HEADER} is not signed by a controller")]
    Signer,
    /// Its time is over, or has not come.
    #[error("{HEADER} has expired, or the clocks of two machines differ")]
    Expired,
    /// For another call.
    #[error("{HEADER} is for another {0}")]
    Other(&'static str),
}

impl Error {
    /// Code for the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Sign(_) => Code::Internal,
            Self::Caller | Self::Other(_) => Code::PermissionDenied,
            Self::Malformed | Self::Signer | Self::Expired => Code::Unauthenticated,
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { code: error.code(), message: format!("not authorized: {error}") }
    }
}

/// Call that an assertion is for.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Machine that passes it on.
    pub by: &'a Machine,
    /// Machine that is called.
    pub to: &'a Machine,
    /// `/package.Service/Method` that is called.
    pub method: &'a str,
}

/// Statement of a controller about a caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    /// Name of the caller.
    sub: String,
    caller: Caller,
    /// Roles, each with its organisation.
    grants: Vec<(String, String)>,
    /// The machine that passes it on.
    azp: String,
    /// The machine that is called.
    aud: String,
    method: String,
    iat: i64,
    exp: i64,
}

/// Proof by which the controller knew the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Caller {
    Session {
        id: String,
        expires: i64,
    },
    Token {
        id: String,
        expires: i64,
    },
    /// Whoever may open a socket of the controller's.
    Local,
}

/// An assertion that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified(Claims);

impl Verified {
    /// The caller, who can do nothing by it but call this method.
    pub fn caller(&self) -> Result<Identity, Error> {
        let claims = &self.0;
        let kind = match &claims.caller {
            Caller::Session { id, expires } => {
                Kind::User { session: id.clone(), expires: *expires }
            }
            Caller::Token { id, expires } => Kind::Delegate(Arc::new(Delegation {
                form: Form::Token,
                id: id.clone(),
                expires: *expires,
                methods: vec![claims.method.trim_start_matches('/').to_owned()],
            })),
            Caller::Local => Kind::User { session: String::new(), expires: claims.exp },
        };
        let grants = claims.grants.iter();
        let grants = grants.map(|(role, organisation)| {
            let role = Role::parse(role).ok_or(Error::Malformed)?;
            Ok(Grant { role, organisation: organisation.clone() })
        });
        let grants = grants.collect::<Result<_, Error>>()?;
        Ok(Identity { name: claims.sub.clone(), kind, grants })
    }

    /// Returns whether the caller came by a socket of the controller's own.
    pub fn is_local(&self) -> bool {
        self.0.caller == Caller::Local
    }
}

/// Signs assertions, as a controller.
pub struct Signer {
    key: EncodingKey,
    header: Header,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl Signer {
    /// Signs by the key of this request, for which there is this certificate,
    /// PEM, with those that lead from it to the authorities.
    pub fn new(request: &KeyRequest, chain_pem: &str) -> Result<Self, pki::Error> {
        let chain = pki::certificates("certificate of a controller", chain_pem)?;
        let chain = chain.iter().map(|der| BASE64.encode(der)).collect();
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some(TYPE.to_owned());
        header.x5c = Some(chain);
        Ok(Self { key: EncodingKey::from_ec_der(&request.key_der()), header })
    }

    /// Says that this caller wants this call to be made.
    pub fn sign(
        &self,
        caller: &Identity,
        call: &Call<'_>,
        now: Timestamp,
    ) -> Result<String, Error> {
        let grants = caller.grants.iter();
        let grants = grants.map(|grant| (grant.role.name().into(), grant.organisation.clone()));
        let claims = Claims {
            sub: caller.name.clone(),
            caller: provable(&caller.kind)?,
            grants: grants.collect(),
            azp: call.by.to_string(),
            aud: call.to.to_string(),
            method: call.method.to_owned(),
            iat: now.as_second(),
            exp: now.as_second().saturating_add(LIFETIME.as_secs().cast_signed()),
        };
        let signed = encode(&self.header, &claims, &self.key);
        signed.map_err(|error| Error::Sign(error.to_string()))
    }
}

/// Proof that a controller has seen itself. The key of a certificate was proved
/// to the node alone, whose word would have to do.
fn provable(kind: &Kind) -> Result<Caller, Error> {
    match kind {
        Kind::User { session, expires } => {
            Ok(Caller::Session { id: session.clone(), expires: *expires })
        }
        Kind::Delegate(limits) if limits.form == Form::Token => {
            Ok(Caller::Token { id: limits.id.clone(), expires: limits.expires })
        }
        Kind::Local => Ok(Caller::Local),
        Kind::Delegate(_) | Kind::Anonymous | Kind::Machine(_) | Kind::Insecure => {
            Err(Error::Caller)
        }
    }
}

/// Checks an assertion with which a call begins.
pub fn verify(
    text: &str,
    trust: &Trust,
    call: &Call<'_>,
    now: Timestamp,
) -> Result<Verified, Error> {
    let verified = verify_ongoing(text, trust, call, now)?;
    let (now, claims) = (now.as_second(), &verified.0);
    let begun = claims.iat <= now.saturating_add(LEEWAY);
    if begun && now < claims.exp.saturating_add(LEEWAY) {
        Ok(verified)
    } else {
        Err(Error::Expired)
    }
}

/// Checks the assertion of a call that began with it and goes on.
pub fn verify_ongoing(
    text: &str,
    trust: &Trust,
    call: &Call<'_>,
    now: Timestamp,
) -> Result<Verified, Error> {
    let verified = verify_audience(text, trust, call.to, now)?;
    if verified.0.azp != call.by.to_string() {
        return Err(Error::Other("relay"));
    }
    if verified.0.method != call.method {
        return Err(Error::Other("method"));
    }
    Ok(verified)
}

/// Checks that an assertion is for this machine, by whomever and for whatever
/// call it is passed on.
pub fn verify_audience(
    text: &str,
    trust: &Trust,
    to: &Machine,
    now: Timestamp,
) -> Result<Verified, Error> {
    let verified = verify_signature(text, trust, now)?;
    if verified.0.aud == to.to_string() { Ok(verified) } else { Err(Error::Other("machine")) }
}

fn verify_signature(text: &str, trust: &Trust, now: Timestamp) -> Result<Verified, Error> {
    let header = decode_header(text).map_err(|_| Error::Malformed)?;
    if header.typ.as_deref() != Some(TYPE) || header.crit.is_some() {
        return Err(Error::Malformed);
    }
    let chain = header.x5c.as_deref().unwrap_or_default();
    if chain.is_empty() || chain.len() > MOST_CERTIFICATES {
        return Err(Error::Malformed);
    }
    let chain = chain.iter().map(|text| BASE64.decode(text).map(CertificateDer::from));
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|_| Error::Malformed)?;
    match trust.machine_of_chain(&chain, now) {
        Ok(Some(Machine::Controller)) => {}
        _ => return Err(Error::Signer),
    }
    let key = pki::public_key(&chain[0]).map_err(|_| Error::Signer)?;
    let mut validation = Validation::new(Algorithm::ES256);
    // Times are checked by our own clock.
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let claims = decode::<Claims>(text, &DecodingKey::from_ec_der(&key), &validation);
    claims.map(|token| Verified(token.claims)).map_err(|_| Error::Signer)
}

#[cfg(test)]
mod tests;
