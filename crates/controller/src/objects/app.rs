//! Apps.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_api::object::Mask;
use selvage_store::{Revision, Transaction};

use super::developer::check_folder;
use super::remove::{Cascade, Removable};
use super::{Summary, check_object, insert, merge, summary};
use crate::controller::{Controller, Mode, Progress};
use crate::derive;
use crate::derive::remote::Fetched;
use crate::derive::remote::fetch::fetch_all;
use crate::error::{Error, Result};
use crate::guard::{claim, refer, release};
use crate::keys::KeyText;
use crate::row::{Row, StoredObject, index};
use crate::settings::Compat;
use crate::tables::{StoredRow, Tables};

const ANDROID_PACKAGES: &str = "android-package";
/// Most attempts to plan an update anew because the App changed meanwhile.
const PLANS: usize = 5;

/// Takes out what the app is started with, its secrets among it. Says whether
/// there was any.
pub(crate) fn conceal(app: &mut wire::App) -> bool {
    let mut there = false;
    let configs = app.configs.iter_mut().map(|config| &mut config.config);
    for text in configs.chain([&mut app.command, &mut app.deployment_manifest]) {
        there |= !text.is_empty();
        text.clear();
    }
    there
}

#[async_trait]
impl Removable for wire::App {
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()> {
        Ok(tables.caught_up::<wire::AppInst>(revision).await?)
    }

    fn users(&self, tables: &Tables) -> Result<Cascade> {
        let insts = tables.find::<wire::AppInst>(index::APP, &self.key_text());
        if insts.iter().any(|inst| inst.value.0.liveness() != wire::Liveness::Dynamic) {
            return Err(Error::in_use("Application in use by static Application Instance"));
        }
        let app_insts = insts.iter().map(|inst| inst.value.0.object_key().clone()).collect();
        Ok(Cascade { app_insts, ..Cascade::default() })
    }

    async fn finish(&self, tx: &Transaction) -> Result<()> {
        release_android_package(tx, self).await
    }
}

/// The cascade of what takes these apps along. An app that cannot go keeps
/// what it refers to: nothing may be left referring to nothing.
pub(super) fn going_with<'a>(
    tables: &Tables,
    apps: impl Iterator<Item = &'a StoredRow<wire::App>>,
) -> Result<Cascade> {
    let mut cascade = Cascade::default();
    for app in apps {
        app.value.0.users(tables)?;
        cascade.apps.push(app.value.0.object_key().clone());
    }
    Ok(cascade)
}

/// Versions of one app may share a package.
fn android_owner(key: &wire::AppKey) -> String {
    wire::AppKey { version: String::new(), ..key.clone() }.text()
}

async fn claim_android_package(tx: &Transaction, app: &wire::App) -> Result<()> {
    let package = &app.android_package_name;
    if package.is_empty() {
        return Ok(());
    }
    let owner = android_owner(app.object_key());
    if claim(tx, ANDROID_PACKAGES, package, &owner, &app.key_text()).await? {
        Ok(())
    } else {
        Err(derive::app::android_in_use(app).into())
    }
}

async fn release_android_package(tx: &Transaction, app: &wire::App) -> Result<()> {
    if app.android_package_name.is_empty() {
        return Ok(());
    }
    release(tx, ANDROID_PACKAGES, &app.android_package_name, &app.key_text()).await
}

impl Controller {
    pub async fn create_app(&self, mut app: wire::App, mode: Mode) -> Result<Summary> {
        check_object(&app)?;
        derive::names::check_app(app.object_key())?;
        app.fields.clear();
        self.prefer_docker(&mut app);
        let needs = derive::app::needs(&app, None, &self.settings)?;
        let fetched = fetch_all(needs, &self.settings.fetch).await;
        let (app, fetched) = (&app, &fetched);
        let done = self
            .transact(mode, |tx| async move {
                let app = derive::app::finish(app.clone(), None, fetched, &self.settings)?;
                claim_android_package(&tx, &app).await?;
                self.check_references(&tx, &app).await?;
                insert(&tx, &app).await
            })
            .await?;
        self.settle::<wire::App>(mode, done.revision).await?;
        Ok(summary::<wire::App>(mode, "create", &app.key_text()))
    }

    fn prefer_docker(&self, app: &mut wire::App) {
        if self.settings.compat == Compat::None {
            let infos = self.tables.cloudlet_infos.list();
            let kinds = infos.iter().map(|info| info.value.0.kind.as_str());
            derive::deployment::prefer_docker(app, kinds);
        }
    }

    /// Checks that everything an app refers to is there and stays.
    async fn check_references(&self, tx: &Transaction, app: &wire::App) -> Result<()> {
        let flavor = app.default_flavor.clone().unwrap_or_default();
        if refer::<wire::Flavor>(tx, &flavor.text()).await?.is_none() {
            return Err(Error::missing("Specified flavor not found"));
        }
        let developer = app.object_key().developer_key.clone().unwrap_or_default();
        let found = refer::<wire::Developer>(tx, &developer.text()).await?;
        if found.is_none() && self.settings.strict {
            return Err(Error::missing("Specified developer not found"));
        }
        check_folder(tx, &developer).await
    }

    /// Goes on when the caller goes away, for it may hold the app meanwhile.
    pub async fn update_app(self: &Arc<Self>, request: wire::App, mode: Mode) -> Result<Summary> {
        let controller = Arc::clone(self);
        super::detached(async move { controller.update_app_planned(&request, mode).await }).await
    }

    /// Remote parts are fetched outside of the transaction for the app as it
    /// is seen before; if it turns out to be another, all is planned anew.
    async fn update_app_planned(&self, request: &wire::App, mode: Mode) -> Result<Summary> {
        let mask = Mask::of(request)?;
        for _ in 1..PLANS {
            match self.update_app_once(request, &mask, mode).await {
                Err(error) if error.code() == Code::Aborted => {}
                result => return result,
            }
        }
        self.update_app_once(request, &mask, mode).await
    }

    async fn update_app_once(
        &self,
        request: &wire::App,
        mask: &Mask,
        mode: Mode,
    ) -> Result<Summary> {
        let key = request.key_text();
        let before = self.tables.apps.get(&key).ok_or(Error::KeyNotFound)?;
        let mut app = before.value.0.clone();
        mask.apply(&mut app, request)?;
        check_object(&app)?;
        let before = &before.value.0;
        let fetched = fetch_all(
            derive::app::needs(&app, Some(before), &self.settings)?,
            &self.settings.fetch,
        )
        .await;
        let after = derive::app::finish(app, Some(before), &fetched, &self.settings)?;
        let touched = derive::app::changes_of_instances(before, &after);
        let update = AppUpdate { request, mask, key: &key, fetched: &fetched, touched: &touched };
        if touched.is_empty() || mode == Mode::DryRun {
            if !touched.is_empty() {
                self.refuse_if_instantiated(&key, &touched)?;
            }
            self.write_app(&update, mode, None).await?;
        } else {
            self.write_app_with_none_referring(&update).await?;
        }
        Ok(summary::<wire::App>(mode, "update", &key))
    }

    /// As for a deletion, nobody may begin to refer to the app while we look
    /// whether somebody does.
    async fn write_app_with_none_referring(&self, update: &AppUpdate<'_>) -> Result<()> {
        let hold = self.hold::<wire::App>(update.key).await?;
        let result = async {
            self.tables.caught_up::<wire::AppInst>(hold.revision).await?;
            self.refuse_if_instantiated(update.key, update.touched)?;
            self.write_app(update, Mode::Real, Some(&hold.token)).await
        }
        .await;
        self.let_go::<wire::App>(update.key, &hold.token).await;
        result
    }

    fn refuse_if_instantiated(&self, key: &str, touched: &[&str]) -> Result<()> {
        if self.tables.find::<wire::AppInst>(index::APP, key).is_empty() {
            return Ok(());
        }
        let fields = touched.join(", ");
        Err(Error::in_use(format!("App has instances: field(s) {fields} cannot be modified")))
    }

    async fn write_app(
        &self,
        update: &AppUpdate<'_>,
        mode: Mode,
        token: Option<&str>,
    ) -> Result<()> {
        let done = self
            .transact(mode, |tx| async move {
                let before = tx.get::<Row<wire::App>>(update.key).await?;
                let before = before.ok_or(Error::KeyNotFound)?.0;
                let (app, _) = merge(&tx, update.key, update.mask, update.request).await?;
                let app = derive::app::finish(app, Some(&before), update.fetched, &self.settings)?;
                if derive::app::changes_of_instances(&before, &app) != update.touched {
                    return Err(Error::refused(Code::Aborted, "the App changed meanwhile"));
                }
                if let Some(token) = token {
                    super::remove::still_held::<wire::App>(&tx, update.key, token).await?;
                }
                if app.android_package_name != before.android_package_name {
                    release_android_package(&tx, &before).await?;
                    claim_android_package(&tx, &app).await?;
                }
                self.check_references(&tx, &app).await?;
                if app != before {
                    tx.put(&Row(app))?;
                }
                Ok(())
            })
            .await?;
        self.settle::<wire::App>(mode, done.revision).await
    }

    pub async fn delete_app(self: &Arc<Self>, request: &wire::App, mode: Mode) -> Result<Summary> {
        self.remove::<wire::App>(request.object_key(), mode, Progress::default()).await
    }
}

/// An update that is planned and about to be written.
struct AppUpdate<'a> {
    request: &'a wire::App,
    mask: &'a Mask,
    key: &'a str,
    fetched: &'a [Fetched],
    /// Fields whose change running instances would not follow.
    touched: &'a [&'static str],
}
