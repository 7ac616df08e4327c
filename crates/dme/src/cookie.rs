//! The cookies that devices show: JWTs signed with HMAC-SHA-512, of which any
//! engine with the same keys can tell that they are good.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use selvage_api::selvage::matching::CookieKey;
use selvage_kit::clock::Clock;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    keys::KeySource,
    table::AppName,
    verified::Verified,
};

/// Limit of the length of a cookie, longer than any.
const MAX_COOKIE: usize = 8192;
/// Minimum interval of reloading keys because of a cookie of an unknown key.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Session of a device, which its cookie proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The app that registered.
    pub app: AppName,
    /// The address it registered from. Kept, never compared: devices move.
    pub peer: String,
}

#[derive(Serialize, Deserialize)]
struct Claims<T> {
    exp: i64,
    iat: i64,
    key: T,
}

/// Content of a session's cookie. The number of the key is in here, not in the
/// header.
#[derive(Serialize, Deserialize)]
struct SessionKey {
    peerip: String,
    devname: String,
    appname: String,
    appvers: String,
    kid: u32,
}

/// Content of a group's cookie.
#[derive(Serialize, Deserialize)]
struct GroupKey {
    group: u64,
    devname: String,
    appname: String,
    appvers: String,
    kid: u32,
}

trait Signed {
    fn kid(&self) -> u32;
}

impl Signed for SessionKey {
    fn kid(&self) -> u32 {
        self.kid
    }
}

impl Signed for GroupKey {
    fn kid(&self) -> u32 {
        self.kid
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
}

/// Reason why a cookie is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum CookieError {
    #[error("missing cookie")]
    Missing,
    #[error("the cookie cannot be read")]
    Malformed,
    #[error("the cookie is signed with a key that is not known")]
    UnknownKey(u32),
    #[error("the signature of the cookie is wrong")]
    Signature,
    #[error("the cookie has expired")]
    Expired,
}

/// Keys, oldest first.
#[derive(Default)]
struct Ring {
    keys: Vec<(u32, hmac::Key)>,
    /// Keys as they were received, to notice a change.
    source: Vec<CookieKey>,
    /// Sessions' cookies that these keys signed.
    verified: Verified,
}

impl Ring {
    fn get(&self, kid: u32) -> Option<&hmac::Key> {
        self.keys.iter().rev().find(|(version, _)| *version == kid).map(|(_, key)| key)
    }

    fn newest(&self) -> Option<&(u32, hmac::Key)> {
        self.keys.last()
    }
}

/// Makes cookies and tells good ones from bad ones.
pub struct Cookies {
    ring: ArcSwap<Ring>,
    source: Arc<dyn KeySource>,
    /// Time of the last reload because of a cookie of an unknown key.
    reloaded: tokio::sync::Mutex<Option<Duration>>,
    lifetime: Duration,
    clock: Arc<dyn Clock>,
}

impl Cookies {
    /// Creates it without keys; [`Cookies::load`] loads them.
    pub fn new(source: Arc<dyn KeySource>, lifetime: Duration, clock: Arc<dyn Clock>) -> Self {
        Self {
            ring: ArcSwap::default(),
            source,
            reloaded: tokio::sync::Mutex::default(),
            lifetime,
            clock,
        }
    }

    /// Gets the keys that there are now.
    pub async fn load(&self) -> Result<()> {
        self.install(self.source.keys().await?);
        Ok(())
    }

    /// Goes by these keys until others are loaded.
    pub(crate) fn install(&self, mut keys: Vec<CookieKey>) {
        keys.sort_by_key(|key| key.version);
        let ready =
            |key: &CookieKey| (key.version, hmac::Key::new(hmac::HMAC_SHA512, &key.cookie_secret));
        let ring = Ring { keys: keys.iter().map(ready).collect(), source: keys, ..Ring::default() };
        // The cache of verified cookies belongs to its keys, and is kept with
        // them.
        if self.ring.load().source != ring.source {
            self.ring.store(Arc::new(ring));
        }
    }

    /// The number of the key that cookies are signed with.
    pub fn newest(&self) -> Option<u32> {
        self.ring.load().newest().map(|(version, _)| *version)
    }

    /// A cookie for an app that registered.
    pub fn issue(&self, app: &AppName, peer: &str) -> Result<String> {
        self.sign(|kid| SessionKey {
            peerip: peer.to_owned(),
            devname: app.developer.clone(),
            appname: app.name.clone(),
            appvers: app.version.clone(),
            kid,
        })
    }

    /// Returns the session of a cookie.
    pub async fn verify(&self, cookie: &str) -> Result<Arc<Session>> {
        let now = self.clock.now().as_second();
        if let Some(session) = self.ring.load().verified.find(cookie, now) {
            return Ok(session);
        }
        let (Claims { exp, key, .. }, ring) = self.open::<SessionKey>(cookie).await?;
        let app = AppName::new(key.devname, key.appname, key.appvers);
        let session = Arc::new(Session { app, peer: key.peerip });
        ring.verified.insert(cookie, exp, &session);
        Ok(session)
    }

    /// A cookie that says that an app is in a group.
    pub fn issue_group(&self, group: u64, app: &AppName) -> Result<String> {
        self.sign(|kid| GroupKey {
            group,
            devname: app.developer.clone(),
            appname: app.name.clone(),
            appvers: app.version.clone(),
            kid,
        })
    }

    /// The group that a cookie is of.
    pub async fn verify_group(&self, cookie: &str) -> Result<u64> {
        Ok(self.open::<GroupKey>(cookie).await?.0.key.group)
    }

    fn sign<T: Serialize>(&self, key: impl FnOnce(u32) -> T) -> Result<String> {
        let ring = self.ring.load();
        let (kid, secret) = ring.newest().ok_or(Error::NoSigningKey)?;
        let iat = self.clock.now().as_second();
        let lifetime = i64::try_from(self.lifetime.as_secs()).unwrap_or(i64::MAX);
        let claims = Claims { exp: iat.saturating_add(lifetime), iat, key: key(*kid) };
        // Numbers and strings can always be written.
        let claims = serde_json::to_vec(&claims).unwrap_or_default();
        let mut token = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS512","typ":"JWT"}"#);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(&claims, &mut token);
        let signature = hmac::sign(secret, token.as_bytes());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    /// Returns the content of a good cookie, with the keys that tell that it is
    /// good.
    async fn open<T: Signed + for<'de> Deserialize<'de>>(
        &self,
        cookie: &str,
    ) -> Result<(Claims<T>, Arc<Ring>)> {
        let outcome = match self.check(cookie) {
            // Another engine may have signed it with a key that is newer.
            Err(CookieError::UnknownKey(kid))
                if self.newest().is_none_or(|newest| kid > newest) =>
            {
                self.reload(kid).await;
                self.check(cookie)
            }
            outcome => outcome,
        };
        outcome.map_err(|bad| Error::Unauthenticated(format!("VerifyCookie failed: {bad}")))
    }

    fn check<T: Signed + for<'de> Deserialize<'de>>(
        &self,
        cookie: &str,
    ) -> Result<(Claims<T>, Arc<Ring>), CookieError> {
        if cookie.is_empty() {
            return Err(CookieError::Missing);
        }
        if cookie.len() > MAX_COOKIE {
            return Err(CookieError::Malformed);
        }
        let (signed, signature) = cookie.rsplit_once('.').ok_or(CookieError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(CookieError::Malformed)?;
        if read::<Header>(header)?.alg != "HS512" {
            return Err(CookieError::Malformed);
        }
        // The number of the key is in the claims: nothing else in them is
        // trusted before the signature is checked.
        let claims: Claims<T> = read(claims)?;
        let kid = claims.key.kid();
        let ring = self.ring.load_full();
        let key = ring.get(kid).ok_or(CookieError::UnknownKey(kid))?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| CookieError::Malformed)?;
        hmac::verify(key, signed.as_bytes(), &signature).map_err(|_| CookieError::Signature)?;
        if claims.exp <= self.clock.now().as_second() {
            return Err(CookieError::Expired);
        }
        Ok((claims, ring))
    }

    async fn reload(&self, kid: u32) {
        let mut reloaded = self.reloaded.lock().await;
        let now = self.clock.elapsed();
        let recently = reloaded.is_some_and(|at| now.saturating_sub(at) < RELOAD_INTERVAL);
        if recently || self.ring.load().get(kid).is_some() {
            return;
        }
        *reloaded = Some(now);
        if let Err(error) = self.load().await {
            tracing::warn!(%error, "keys of cookies not loaded, the old ones stay");
        }
    }
}

fn read<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, CookieError> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| CookieError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| CookieError::Malformed)
}
