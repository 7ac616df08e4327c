//! Errors, and the text of each for the caller.

use std::error::Error as StdError;

use selvage_api::Code;
use tonic::{Status, metadata::MetadataValue};

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with identities.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field at fault.
        field: &'static str,
        /// Reason it is refused.
        reason: String,
    },
    /// The same for an unknown user, a disabled one and a wrong password.
    #[error("wrong username or password")]
    WrongPassword,
    /// Too many failures lately.
    #[error("too many failed attempts from here: try again in {retry_after} s")]
    TooManyAttempts {
        /// Seconds until the next attempt is looked at.
        retry_after: u64,
    },
    /// More passwords wait to be checked than can be in good time.
    #[error("too many logins at this moment: try again in a second")]
    Busy,
    /// Nobody is logged in.
    #[error("log in first")]
    NotLoggedIn,
    /// The session is over, or the token never was one.
    #[error("the session has ended: log in again")]
    SessionEnded,
    /// The code of a login is wrong, was used, or came too late.
    #[error("code: not one of a login that waits here, or the verifier is another: begin again")]
    LoginCode,
    /// The caller is known and may not.
    #[error("{0}")]
    Denied(String),
    /// There is no such user.
    #[error("user {0:?} not found")]
    UserNotFound(String),
    /// There is such a user already.
    #[error("user {0:?} exists already")]
    UserExists(String),
    /// There is no such session.
    #[error("session {0:?} not found")]
    SessionNotFound(String),
    /// Nobody would be left to administer.
    #[error("user {0:?} is the last administrator: make another one first")]
    LastAdministrator(String),
    /// Passwords are switched off.
    #[error("logging in with a password is switched off here: log in through {0}")]
    PasswordLoginOff(String),
    /// The user has no password here.
    #[error("user {username:?} logs in through {provider} and has no password here")]
    NoPasswordHere {
        /// Whose.
        username: String,
        /// Name of the provider at which the user logs in.
        provider: String,
    },
    /// The token or certificate was never made, or was ended.
    #[error("this {0} is not known here, or was ended: ask its owner for another")]
    CredentialUnknown(&'static str),
    /// The token or certificate is too old.
    #[error("this {form} expired at {ended}: ask its owner for another")]
    CredentialExpired {
        /// Token or certificate.
        form: &'static str,
        /// Its end.
        ended: jiff::Timestamp,
    },
    /// Nothing that it was made for is its owner's to do any more.
    #[error("the owner of this {0} holds none of the roles that it was made for any more")]
    CredentialVoid(&'static str),
    /// The owner has one of that name.
    #[error("{0:?} exists already: delete it first, or choose another name")]
    CredentialExists(String),
    /// The owner has too many.
    #[error("user {username:?} has {most} tokens and certificates, which is the most: delete one")]
    TooManyCredentials {
        /// Their owner.
        username: String,
        /// The limit.
        most: usize,
    },
    /// There is no such token or certificate.
    #[error("token or certificate {0:?} not found")]
    CredentialNotFound(String),
    /// The join token was never made, or is long gone.
    #[error("token: not a join token of this system, or expired")]
    JoinTokenUnknown,
    /// The join token is too old.
    #[error("token: this join token expired at {0}: make a new one")]
    JoinTokenExpired(jiff::Timestamp),
    /// The join token did its work already.
    #[error("token: this join token was used already: make a new one")]
    JoinTokenUsed,
    /// An administrator stopped the machine.
    #[error("machine {0:?} is blocked")]
    MachineBlocked(String),
    /// The machine is not stopped.
    #[error("machine {0:?} is not blocked")]
    MachineNotBlocked(String),
    /// The machine is not listed.
    #[error("machine {0:?} not found")]
    MachineNotFound(String),
    /// A report from a caller that is not an agent.
    #[error("only a machine's agent, by its certificate, reports itself")]
    NotAnAgent,
    /// There is nothing to sign certificates with.
    #[error("this server has no certificate authority")]
    NoAuthority,
    /// No authority is being replaced.
    #[error("no authority is being replaced: `selvage pki rotate start` begins it")]
    NoRotation,
    /// The next step of a rotation would cut somebody off.
    #[error("the old authority stays: waiting for {}", .0.join("; "))]
    RotationWaits(Vec<String>),
    /// The keys on disk are not those that the store tells of.
    #[error(
        "pki/ holds other authorities than the store knows: copy pki/ from another controller, or \
         restore pki/ and the store from the same backup"
    )]
    OtherAuthorities,
    /// Keys or certificates of authorities cannot be used.
    #[error(transparent)]
    Pki(#[from] selvage_kit::pki::Error),
    /// An assertion of a caller is not made or not believed.
    #[error("not authorized: {0}")]
    Assertion(#[from] selvage_kit::assertion::Error),
    /// Signing failed for a reason that is not the caller's.
    #[error("the certificate could not be signed")]
    Signing(#[source] Box<dyn StdError + Send + Sync>),
    /// The settings cannot work.
    #[error("{key}: {reason}")]
    Settings {
        /// Name of the setting.
        key: String,
        /// Reason it is refused.
        reason: String,
    },
    /// Hashing failed, which a sound machine does not do.
    #[error("the password could not be hashed: {0}")]
    Hashing(String),
    /// The store failed.
    #[error("identities could not be read or written")]
    Store(#[source] selvage_store::Error),
    /// Others won the race for the same records too often.
    #[error("others are changing the same identity at this moment: try again")]
    Contended,
}

impl Error {
    /// The code that callers see.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::Settings { .. } => Code::InvalidArgument,
            Self::WrongPassword
            | Self::NotLoggedIn
            | Self::SessionEnded
            | Self::LoginCode
            | Self::CredentialUnknown(_)
            | Self::CredentialExpired { .. }
            | Self::CredentialVoid(_)
            | Self::JoinTokenUnknown
            | Self::JoinTokenExpired(_)
            | Self::JoinTokenUsed => Code::Unauthenticated,
            Self::TooManyAttempts { .. } | Self::Busy => Code::ResourceExhausted,
            Self::Denied(_) | Self::MachineBlocked(_) => Code::PermissionDenied,
            Self::UserNotFound(_)
            | Self::SessionNotFound(_)
            | Self::CredentialNotFound(_)
            | Self::MachineNotBlocked(_)
            | Self::MachineNotFound(_) => Code::NotFound,
            Self::UserExists(_) | Self::CredentialExists(_) => Code::AlreadyExists,
            Self::TooManyCredentials { .. }
            | Self::LastAdministrator(_)
            | Self::PasswordLoginOff(_)
            | Self::NoPasswordHere { .. }
            | Self::NotAnAgent
            | Self::NoRotation
            | Self::RotationWaits(_)
            | Self::OtherAuthorities
            | Self::NoAuthority => Code::FailedPrecondition,
            Self::Pki(error) => error.code(),
            Self::Assertion(error) => error.code(),
            Self::Signing(_) | Self::Hashing(_) => Code::Internal,
            Self::Store(error) => error.code(),
            Self::Contended => Code::Aborted,
        }
    }

    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }

    pub(crate) fn settings(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Settings { key: key.into(), reason: reason.into() }
    }

    /// Text for the caller. Of the store's failures the whole story: the caller
    /// may be the one who can make room on the disk.
    fn message(&self) -> String {
        match self {
            Self::Store(_) => selvage_api::chain(self),
            other => other.to_string(),
        }
    }

    /// A word for the audit log.
    pub(crate) fn class(&self) -> &'static str {
        match self {
            Self::WrongPassword => "wrong_credentials",
            Self::TooManyAttempts { .. } => "rate_limited",
            Self::Busy => "busy",
            Self::PasswordLoginOff(_) => "password_login_off",
            Self::MachineBlocked(_) => "machine_blocked",
            other => other.code().name(),
        }
    }
}

impl From<selvage_store::Error> for Error {
    fn from(error: selvage_store::Error) -> Self {
        match error {
            selvage_store::Error::Aborted { .. } => Self::Contended,
            other => Self::Store(other),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let own_text = error.message();
        if matches!(error.code(), Code::Internal | Code::DataLoss | Code::Unavailable) {
            let cause = error.source().map(ToString::to_string);
            tracing::error!(error = %error, cause, "identity request failed");
        }
        let mut status = Self::new(error.code().grpc(), own_text);
        let retry_after = match error {
            Error::TooManyAttempts { retry_after } => retry_after,
            Error::Busy => 1,
            _ => return status,
        };
        status.metadata_mut().insert("retry-after", MetadataValue::from(retry_after));
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_says_reaches_the_caller() {
        let full = std::io::Error::other("no space left on device");
        let cases = [
            selvage_store::Error::Failed { reason: "data/log: no space left on device".into() },
            selvage_store::Error::Io { what: "cannot write data/log".into(), source: full },
        ];
        for error in cases {
            let own = error.to_string();
            let status = Status::from(Error::from(error));
            assert_eq!(status.code(), tonic::Code::Unavailable);
            assert!(status.message().contains(&own), "{}", status.message());
            assert!(status.message().ends_with("no space left on device"), "{}", status.message());
        }
    }
}
