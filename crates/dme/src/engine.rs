//! Answers of the engine, apart from the protocol by which it is asked.

use std::{fmt, sync::Arc, time::Duration};

use selvage_api::distributed_match_engine::{
    DlgMessage, DlgReply, DynamicLocGroupReply, DynamicLocGroupRequest, GetLocationReply,
    GetLocationRequest, Loc, RegisterClientReply, RegisterClientRequest, ReplyStatus,
    get_location_reply::LocStatus,
};
use selvage_kit::{clock::Clock, identity::Secret};

use crate::{
    cookie::{Cookies, Session},
    developer,
    error::{Error, Result},
    feed::Feed,
    keys::KeySource,
    location::LocationClient,
    position::is_on_earth,
    stats::Stats,
    table::{AppEntry, AppName, DeveloperKey},
};

/// An app that finds others, unless configured otherwise.
const PLATFORM_APP: &str = "Samsung:SamsungEnablingLayer";

/// An API of the carrier that knows where devices are.
#[derive(Clone)]
pub struct LocationApi {
    /// Address of the API.
    pub url: String,
    /// User there; empty: nobody.
    pub user: String,
    /// Password of the user.
    pub password: Secret,
    /// Timeout of a request.
    pub timeout: Duration,
}

impl fmt::Debug for LocationApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocationApi").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Names this engine among others, in samples and in the list of nodes.
    pub name: String,
    /// The cloudlet it runs on: operator and name.
    pub operator: String,
    pub cloudlet: String,
    /// Lifetime of a cookie.
    pub cookie_lifetime: Duration,
    /// Interval of the search for new keys.
    pub key_refresh: Duration,
    /// Interval at which counts are sent, if they changed.
    pub stats_interval: Duration,
    /// Server that gives devices tokens for the location API.
    pub token_server: String,
    /// API that checks locations of devices. Without it the distance to the
    /// nearest instance does.
    pub location_api: Option<LocationApi>,
    /// Apps, as `developer:app`, that find instances of others.
    pub platform_apps: Vec<String>,
    /// The engine is not ready when it has not heard from a controller for
    /// so long; zero: it is, however long that is.
    pub max_staleness: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "dme".into(),
            operator: String::new(),
            cloudlet: String::new(),
            cookie_lifetime: Duration::from_secs(24 * 3600),
            key_refresh: Duration::from_secs(300),
            stats_interval: Duration::from_secs(1),
            token_server: String::new(),
            location_api: None,
            platform_apps: vec![PLATFORM_APP.into()],
            max_staleness: Duration::ZERO,
        }
    }
}

/// The engine itself.
pub struct Engine {
    pub(crate) settings: Settings,
    pub(crate) feed: Feed,
    pub(crate) cookies: Cookies,
    pub(crate) stats: Arc<Stats>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) location: Option<LocationClient>,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(
        settings: Settings,
        keys: Arc<dyn KeySource>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let stats = Arc::new(Stats::default());
        let location = match &settings.location_api {
            Some(api) => Some(LocationClient::new(api, &settings.token_server)?),
            None => None,
        };
        Ok(Self {
            feed: Feed::new(Arc::clone(&stats))?,
            cookies: Cookies::new(keys, settings.cookie_lifetime, Arc::clone(&clock)),
            stats,
            clock,
            location,
            settings,
        })
    }

    /// Apps and instances that the engine knows.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Its cookies.
    pub fn cookies(&self) -> &Cookies {
        &self.cookies
    }

    pub(crate) fn app(&self, name: &AppName) -> Option<Arc<AppEntry>> {
        self.feed.table().app(name).cloned()
    }

    pub(crate) fn is_platform_app(&self, app: &AppName) -> bool {
        let is = |text: &String| {
            text.split_once(':') == Some((app.developer.as_str(), app.name.as_str()))
        };
        self.settings.platform_apps.iter().any(is)
    }

    /// Lets a device in that runs the app.
    pub fn register(
        &self,
        request: &RegisterClientRequest,
        peer: &str,
    ) -> Result<RegisterClientReply> {
        for (field, missing) in [
            (&request.dev_name, "DevName cannot be empty"),
            (&request.app_name, "AppName cannot be empty"),
            (&request.app_vers, "AppVers cannot be empty"),
        ] {
            if field.is_empty() {
                return Err(Error::Invalid(missing));
            }
        }
        let name = AppName::new(&*request.dev_name, &*request.app_name, &*request.app_vers);
        let app = self.app(&name).ok_or_else(|| Error::NotFound("app not found".into()))?;
        self.check_token(&app, &request.auth_token)?;
        Ok(RegisterClientReply {
            ver: 0,
            status: ReplyStatus::RsSuccess.into(),
            session_cookie: self.cookies.issue(&name, peer)?,
            token_server_uri: self.settings.token_server.clone(),
        })
    }

    fn check_token(&self, app: &AppEntry, token: &str) -> Result<()> {
        let unauthenticated = |text: &str| Err(Error::Unauthenticated(text.into()));
        let bad = |bad| Error::Unauthenticated(format!("failed to verify token - {bad}"));
        match &app.developer_key {
            DeveloperKey::None if token.is_empty() => Ok(()),
            DeveloperKey::None => unauthenticated("No authkey found to validate token"),
            _ if token.is_empty() => Err(Error::Invalid("No authtoken received")),
            DeveloperKey::Unreadable => Err(bad(developer::TokenError::Key)),
            DeveloperKey::Key(key) => {
                developer::verify(token, key, &app.name, self.clock.now()).map_err(bad)
            }
        }
    }

    /// Location of the device as its carrier sees it. No carrier tells us: as
    /// in the original, what is asked for is found without a place.
    pub fn location(&self, request: &GetLocationRequest) -> GetLocationReply {
        GetLocationReply {
            status: LocStatus::LocFound.into(),
            carrier_name: request.carrier_name.clone(),
            network_location: Some(Loc::default()),
            ..GetLocationReply::default()
        }
    }

    /// Takes a device into a group. That it is in it, its cookie says: every
    /// engine of the region believes it, and none has to remember it.
    pub fn join_group(
        &self,
        session: &Session,
        request: &DynamicLocGroupRequest,
    ) -> Result<DynamicLocGroupReply> {
        Ok(DynamicLocGroupReply {
            status: ReplyStatus::RsSuccess.into(),
            group_cookie: self.cookies.issue_group(request.lg_id, &session.app)?,
            ..DynamicLocGroupReply::default()
        })
    }

    /// Acknowledges a message to a group, of somebody who is in it.
    pub async fn send_to_group(&self, message: &DlgMessage) -> Result<DlgReply> {
        let group = self.cookies.verify_group(&message.group_cookie).await?;
        if group != message.lg_id {
            return Err(Error::Denied(format!(
                "the cookie is of group {group}, not of {}",
                message.lg_id
            )));
        }
        Ok(DlgReply {
            ver: 0,
            ack_id: message.message_id,
            group_cookie: message.group_cookie.clone(),
        })
    }
}

/// A place that was really given: 0,0 is what is sent by who does not know.
pub(crate) fn required(loc: Option<&Loc>, missing: &'static str) -> Result<Loc> {
    let given = loc.filter(|loc| loc.latitude != 0.0 || loc.longitude != 0.0);
    on_earth(given, missing)
}

/// A place, wherever it is.
pub(crate) fn on_earth(loc: Option<&Loc>, missing: &'static str) -> Result<Loc> {
    let loc = loc.ok_or(Error::Invalid(missing))?;
    if !is_on_earth(loc) {
        return Err(Error::Invalid("Invalid GpsLocation"));
    }
    Ok(*loc)
}
