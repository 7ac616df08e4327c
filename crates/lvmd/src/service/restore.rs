//! Volumes that are made of a backup.

use futures::StreamExt;
use selvage_api::proto::DataSource;
use tonic::{Code, Status};

use super::lv::LvApi;
use crate::{
    Error, NewVolume, Volume,
    backup::{self, NewRestore},
};

impl LvApi {
    /// Makes a volume of a backup. Waits until it is whole, or only until it
    /// is there, as the source says.
    pub(super) async fn restored(
        &self,
        class: &str,
        new: NewVolume,
        source: DataSource,
        who: &str,
    ) -> Result<Volume, Status> {
        let Some(backups) = &self.backups else {
            let why = format!("a volume cannot be restored: {}", backup::Error::NotConfigured);
            return Err(Error::Precondition(why).into());
        };
        if new.size == 0 {
            return Err(Error::Invalid("--size may not be zero.".into()).into());
        }
        let synchronous = source.synchronous_restore;
        let access = backups.access_of(Some(source))?;
        let NewVolume { name, size, tags, .. } = new;
        let wanted = NewRestore {
            class: class.to_owned(),
            volume: name.clone(),
            size,
            tags,
            source_volume: String::new(),
            source_hostname: String::new(),
            replace: false,
        };
        let job = backups.restore(wanted, access, None, who).await?;
        let handle = backups.attach(&job)?;
        let mut events = handle.follow();
        while let Some(event) = events.next().await {
            match event {
                Ok(_) => {
                    let there = self.volumes.find(class, &name);
                    if let Ok(volume) = there
                        && !synchronous
                    {
                        return Ok(volume);
                    }
                }
                Err(failure) if failure.interrupt().is_some() => return Err(failure.into()),
                Err(failure) => {
                    let code = backups.find(handle.id()).map(|job| job.code).unwrap_or_default();
                    let code = if code == 0 { failure.code().grpc() } else { Code::from(code) };
                    return Err(Status::new(code, failure.message()));
                }
            }
        }
        Ok(self.volumes.find(class, &name)?)
    }
}
