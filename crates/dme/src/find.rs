//! The nearest instance of an app.

use selvage_api::distributed_match_engine::{
    FindCloudletReply, FindCloudletRequest, Loc, find_cloudlet_reply::FindStatus,
};

use crate::{
    cookie::Session,
    engine::{Engine, required},
    error::{Error, Result},
    position::Position,
    table::{AppEntry, AppName, DEVELOPER, Instance},
};

/// Distance larger than any on earth, in km.
const FARTHEST: f64 = 100_000.0;
/// Distance in km by which a public cloud has to be nearer than the carrier.
const PUBLIC_CLOUD_PADDING: f64 = 100.0;
/// Public clouds in the order in which they are tried.
const PUBLIC_CLOUDS: [&str; 2] = ["azure", "gcp"];

impl Engine {
    /// Finds the instance that a device should use.
    pub fn find(
        &self,
        session: &Session,
        request: &FindCloudletRequest,
    ) -> Result<FindCloudletReply> {
        if request.carrier_name.is_empty() {
            return Err(Error::Invalid("Missing carrierName"));
        }
        let here = required(request.gps_location.as_ref(), "Missing GpsLocation")?;
        let table = self.feed.table();
        let wanted = self.wanted(&session.app, request)?;
        let name = wanted.as_ref().unwrap_or(&session.app);
        let app = table.app(name);
        if wanted.is_some() && !app.is_some_and(|app| app.permits_platform_apps) {
            return Err(not_allowed(&session.app, name));
        }
        if self.is_platform_app(name) {
            return Ok(nothing());
        }
        let found = app.and_then(|app| best(app, &request.carrier_name, &Position::of(&here)));
        Ok(found.map_or_else(nothing, |instance| FindCloudletReply {
            ver: 0,
            status: FindStatus::FindFound.into(),
            fqdn: instance.uri.clone(),
            ports: instance.ports.clone(),
            cloudlet_location: Some(instance.location),
        }))
    }

    /// The app that is asked for, if it is another than the one that
    /// registered. Only platform apps may ask for others.
    fn wanted(&self, own: &AppName, request: &FindCloudletRequest) -> Result<Option<AppName>> {
        let or_own = |asked: &String, own: &String| {
            if asked.is_empty() { own.clone() } else { asked.clone() }
        };
        let asked = [&request.dev_name, &request.app_name, &request.app_vers];
        if asked.iter().all(|name| name.is_empty()) {
            return Ok(None);
        }
        let wanted = AppName {
            developer: or_own(&request.dev_name, &own.developer),
            name: or_own(&request.app_name, &own.name),
            version: or_own(&request.app_vers, &own.version),
        };
        if wanted == *own {
            return Ok(None);
        }
        if !self.is_platform_app(own) {
            return Err(not_allowed(own, &wanted));
        }
        Ok(Some(wanted))
    }
}

fn not_allowed(own: &AppName, wanted: &AppName) -> Error {
    let text = |app: &AppName| {
        format!("Devname: {} Appname: {} AppVers: {}", app.developer, app.name, app.version)
    };
    Error::Denied(format!(
        "Access to requested app: {} not allowed for the registered app: {}",
        text(wanted),
        text(own)
    ))
}

fn nothing() -> FindCloudletReply {
    FindCloudletReply {
        status: FindStatus::FindNotfound.into(),
        cloudlet_location: Some(Loc::default()),
        ..FindCloudletReply::default()
    }
}

/// The carrier's own nearest instance, or one in a public cloud that is much
/// nearer, or else the one that the developer runs.
fn best<'a>(app: &'a AppEntry, carrier: &str, here: &Position) -> Option<&'a Instance> {
    let nearest = |carrier: &str, limit: f64| {
        let found = app.carrier(carrier).and_then(|carrier| carrier.nearest(here));
        found.filter(|(_, distance)| *distance < limit)
    };
    let mut found = nearest(carrier, FARTHEST);
    let distance = found.map_or(FARTHEST, |(_, distance)| distance);
    if distance > PUBLIC_CLOUD_PADDING {
        let mut limit = distance - PUBLIC_CLOUD_PADDING;
        for cloud in PUBLIC_CLOUDS {
            if let Some(nearer) = nearest(cloud, limit) {
                limit = nearer.1;
                found = Some(nearer);
            }
        }
    }
    found.or_else(|| nearest(DEVELOPER, f64::INFINITY)).map(|(instance, _)| instance)
}
