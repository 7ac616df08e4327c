//! Operations of MaaS that a provider needs.

use serde::Deserialize;

use super::{
    http::{Failure, Form, Http},
    options::{Erase, InstanceType},
};
use crate::provider::Wipe;

/// State of a machine, by the numbers of MaaS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Ready,
    Allocated,
    Deploying,
    Deployed,
    FailedDeployment,
    /// Being given back, or its disks being erased.
    Releasing,
    /// Giving it back, or erasing its disks, went wrong.
    FailedReleasing,
    /// Anything else: an administrator does something with it.
    Other,
}

impl Status {
    fn of(number: u32) -> Self {
        match number {
            4 => Self::Ready,
            6 => Self::Deployed,
            9 => Self::Deploying,
            10 => Self::Allocated,
            11 => Self::FailedDeployment,
            12 | 14 => Self::Releasing,
            13 | 15 => Self::FailedReleasing,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

/// A machine as MaaS shows it. Only what identifies it is needed: a field that
/// some version lacks must not lose a machine.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct MaasMachine {
    pub(super) system_id: String,
    #[serde(default)]
    pub(super) hostname: String,
    #[serde(default)]
    pub(super) owner: Option<String>,
    status: u32,
    #[serde(default)]
    status_name: String,
    #[serde(default)]
    status_message: Option<String>,
    #[serde(default)]
    tag_names: Vec<String>,
    #[serde(default)]
    cpu_count: u32,
    #[serde(default)]
    memory: u64,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    zone: Option<Named>,
    #[serde(default)]
    pool: Option<Named>,
    #[serde(default)]
    locked: bool,
}

impl MaasMachine {
    pub(super) fn status(&self) -> Status {
        Status::of(self.status)
    }

    /// State in MaaS's own words.
    pub(super) fn detail(&self) -> String {
        match self.status_message.as_deref() {
            None | Some("") => self.status_name.clone(),
            Some(message) => {
                let message: String = message.chars().filter(|c| !c.is_control()).collect();
                format!("{}: {message}", self.status_name)
            }
        }
    }

    /// Returns whether nobody has it.
    pub(super) fn is_free(&self) -> bool {
        self.status() == Status::Ready && !self.locked
    }

    /// Returns whether it serves as that type.
    pub(super) fn fits(&self, wanted: &InstanceType) -> bool {
        let has = |tag: &String| self.tag_names.contains(tag);
        let is = |own: &Option<Named>, wanted: &str| {
            wanted.is_empty() || own.as_ref().is_some_and(|own| own.name == wanted)
        };
        wanted.tags.iter().all(has)
            && !wanted.not_tags.iter().any(has)
            && self.cpu_count >= wanted.cpu_count
            && self.memory >= wanted.memory
            && (wanted.arch.is_empty() || self.architecture.starts_with(&wanted.arch))
            && is(&self.zone, &wanted.zone)
            && is(&self.pool, &wanted.pool)
    }
}

/// One MaaS.
pub(super) struct Api(pub(super) Http);

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let unreadable = |error| Failure::Later(format!("the answer of MaaS cannot be read: {error}"));
    serde_json::from_slice(body).map_err(unreadable)
}

impl Api {
    /// Name of the user whose API key it is.
    pub(super) async fn whoami(&self) -> Result<String, Failure> {
        #[derive(Deserialize)]
        struct User {
            username: String,
        }
        let query = vec![("op", "whoami".to_owned())];
        let user: User = read(&self.0.get("users/", &query).await?)?;
        Ok(user.username)
    }

    /// Machines that were allocated with that name of an agent.
    pub(super) async fn of_agent(&self, agent: &str) -> Result<Vec<MaasMachine>, Failure> {
        let query = vec![("agent_name", agent.to_owned())];
        read(&self.0.get("machines/", &query).await?)
    }

    /// All machines that our user may see.
    pub(super) async fn machines(&self) -> Result<Vec<MaasMachine>, Failure> {
        read(&self.0.get("machines/", &Form::new()).await?)
    }

    /// The machine with that identifier; `None` if there is none.
    pub(super) async fn machine(&self, id: &str) -> Result<Option<MaasMachine>, Failure> {
        match self.0.get(&format!("machines/{id}/"), &Form::new()).await {
            Ok(body) => Ok(Some(read(&body)?)),
            // One that we may not see is none of ours.
            Err(Failure::NotFound(_) | Failure::Denied(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Takes a machine that fits, in the name of an agent.
    pub(super) async fn allocate(
        &self,
        agent: &str,
        comment: &str,
        wanted: &InstanceType,
        system_id: Option<&str>,
    ) -> Result<MaasMachine, Failure> {
        let mut form: Form =
            vec![("agent_name", agent.to_owned()), ("comment", comment.to_owned())];
        form.extend(system_id.map(|id| ("system_id", id.to_owned())));
        form.extend(wanted.tags.iter().map(|tag| ("tags", tag.clone())));
        form.extend(wanted.not_tags.iter().map(|tag| ("not_tags", tag.clone())));
        for (name, value) in
            [("zone", &wanted.zone), ("pool", &wanted.pool), ("arch", &wanted.arch)]
        {
            if !value.is_empty() {
                form.push((name, value.clone()));
            }
        }
        let least = [("cpu_count", u64::from(wanted.cpu_count)), ("mem", wanted.memory)];
        for (name, least) in least.into_iter().filter(|(_, least)| *least > 0) {
            form.push((name, least.to_string()));
        }
        read(&self.0.post("machines/?op=allocate", &form).await?)
    }

    /// Installs an image. `user_data` is in base64.
    pub(super) async fn deploy(
        &self,
        id: &str,
        comment: &str,
        distro_series: &str,
        user_data: &str,
    ) -> Result<MaasMachine, Failure> {
        let mut form: Form =
            vec![("user_data", user_data.to_owned()), ("comment", comment.to_owned())];
        if !distro_series.is_empty() {
            form.push(("distro_series", distro_series.to_owned()));
        }
        read(&self.0.post(&format!("machines/{id}/?op=deploy"), &form).await?)
    }

    /// Gives a machine back. One that is being given back already stays as it
    /// is.
    pub(super) async fn release(
        &self,
        id: &str,
        comment: &str,
        erase: Erase,
        wipe: Wipe,
    ) -> Result<MaasMachine, Failure> {
        let mut form: Form = vec![("comment", comment.to_owned())];
        if erase != Erase::Default || wipe == Wipe::Disks {
            form.push(("erase", "true".into()));
        }
        match erase {
            Erase::Quick => form.push(("quick_erase", "true".into())),
            Erase::Secure => form.push(("secure_erase", "true".into())),
            Erase::Default | Erase::Full => {}
        }
        read(&self.0.post(&format!("machines/{id}/?op=release"), &form).await?)
    }
}
