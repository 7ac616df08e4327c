//! Tokens by which a developer says that a device may use their app: JWTs
//! signed with RS256, checked by the public key of the app.

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;

use crate::table::AppName;

/// Claims of a token. A token without an end is good for ever.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    devname: String,
    #[serde(default)]
    appname: String,
    #[serde(default)]
    appvers: String,
    exp: Option<i64>,
    nbf: Option<i64>,
}

/// Reason why a token is refused. Clients of the original know the texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the public key of the app cannot be read")]
    Key,
    #[error("the token cannot be read, or is not signed by the developer")]
    Signature,
    #[error("token is expired")]
    Expired,
    #[error("token is not valid yet")]
    NotYet,
    #[error("token developer mismatch")]
    Developer,
    #[error("token appname mismatch")]
    Name,
    #[error("token appvers mismatch")]
    Version,
}

/// Checks a token for an app.
pub(crate) fn verify(
    token: &str,
    key: &DecodingKey,
    app: &AppName,
    now: Timestamp,
) -> Result<(), TokenError> {
    let mut validation = Validation::new(Algorithm::RS256);
    // Times are checked below, by our own clock.
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    let claims =
        decode::<Claims>(token, key, &validation).map_err(|_| TokenError::Signature)?.claims;
    let now = now.as_second();
    if claims.exp.is_some_and(|end| end <= now) {
        return Err(TokenError::Expired);
    }
    if claims.nbf.is_some_and(|begin| begin > now) {
        return Err(TokenError::NotYet);
    }
    if claims.devname != app.developer {
        return Err(TokenError::Developer);
    }
    if claims.appname != app.name {
        return Err(TokenError::Name);
    }
    if claims.appvers != app.version {
        return Err(TokenError::Version);
    }
    Ok(())
}
