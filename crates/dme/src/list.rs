//! Instances of all apps near a device, and the addresses of apps.

use std::collections::BTreeMap;

use selvage_api::distributed_match_engine::{
    AppFqdn, AppInstListReply, AppInstListRequest, Appinstance, CloudletLocation, FqdnListReply,
    app_inst_list_reply::AiStatus, fqdn_list_reply::FlStatus,
};

use crate::{
    cookie::Session,
    engine::{Engine, on_earth},
    error::{Error, Result},
    position::Position,
    table::{AppEntry, CloudletName, DEVELOPER, Instance},
};

/// Carriers whose instances are for the devices of all.
const FOR_ALL: [&str; 3] = ["azure", "gcp", DEVELOPER];

impl Engine {
    /// All instances of the app by cloudlet, the nearest first.
    pub fn list(
        &self,
        session: &Session,
        request: &AppInstListRequest,
    ) -> Result<AppInstListReply> {
        let here = on_earth(request.gps_location.as_ref(), "Missing GpsLocation")?;
        let here = Position::of(&here);
        let carrier = &request.carrier_name;
        let app = self.app(&session.app);
        let mut cloudlets = BTreeMap::new();
        for (name, instances) in app.iter().flat_map(|app| app.carriers()) {
            if !carrier.is_empty() && carrier != name && !FOR_ALL.contains(&name) {
                continue;
            }
            for (instance, distance) in instances.all(&here) {
                if !instance.site.cloudlet.is_default() {
                    let there: &mut Vec<_> = cloudlets.entry(&instance.site.cloudlet).or_default();
                    there.push((instance, distance));
                }
            }
        }
        let mut cloudlets: Vec<_> = cloudlets
            .into_iter()
            .map(|(name, there)| describe(&session.app.name, &session.app.version, name, there))
            .collect();
        // Stable: what is equally far stays in the order of names.
        cloudlets.sort_by(|a, b| a.distance.total_cmp(&b.distance));
        Ok(AppInstListReply { ver: 0, status: AiStatus::AiSuccess.into(), cloudlets })
    }

    /// Addresses of all apps that platform apps may find.
    pub fn fqdns(&self, session: &Session) -> Result<FqdnListReply> {
        if !self.is_platform_app(&session.app) {
            let developer = &session.app.developer;
            return Err(Error::Denied(format!("API Not allowed for developer: {developer}")));
        }
        let table = self.feed.table();
        let shown = |app: &&std::sync::Arc<AppEntry>| {
            app.permits_platform_apps && !self.is_platform_app(&app.name)
        };
        let mut app_fqdns: Vec<_> =
            table.apps.values().filter(shown).filter_map(|app| addresses(app)).collect();
        let key =
            |app: &AppFqdn| (app.dev_name.clone(), app.app_name.clone(), app.app_vers.clone());
        app_fqdns.sort_by_cached_key(key);
        Ok(FqdnListReply { ver: 0, app_fqdns, status: FlStatus::FlSuccess.into() })
    }
}

fn describe(
    app: &str,
    version: &str,
    cloudlet: &CloudletName,
    mut there: Vec<(&Instance, f64)>,
) -> CloudletLocation {
    there.sort_by(|(a, _), (b, _)| a.site.cmp(&b.site));
    let (location, distance) =
        there.first().map(|(first, distance)| (first.location, *distance)).unwrap_or_default();
    CloudletLocation {
        carrier_name: cloudlet.operator.clone(),
        cloudlet_name: cloudlet.name.clone(),
        gps_location: Some(location),
        distance,
        appinstances: there
            .into_iter()
            .map(|(instance, _)| Appinstance {
                app_name: app.to_owned(),
                app_vers: version.to_owned(),
                fqdn: instance.uri.clone(),
                ports: instance.ports.clone(),
            })
            .collect(),
    }
}

/// The addresses of an app that its developer runs.
fn addresses(app: &AppEntry) -> Option<AppFqdn> {
    let instances = app.carrier(DEVELOPER)?.instances().iter();
    let mut own: Vec<_> = instances.filter(|own| own.site.cloudlet.is_default()).collect();
    own.sort_by(|a, b| a.site.cmp(&b.site));
    let first = own.first()?;
    Some(AppFqdn {
        app_name: app.name.name.clone(),
        app_vers: app.name.version.clone(),
        dev_name: app.name.developer.clone(),
        fqdns: first.uri.split(',').map(str::to_owned).collect(),
        android_package_name: app.android_package.clone(),
    })
}
