//! Objects of one kind, whatever the kind is.

use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::{
    Client, Resource,
    api::{
        Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams,
        PartialObjectMeta, Patch, PatchParams, WatchEvent, WatchParams,
    },
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{Context, Error, Result, ignore_not_found};

/// Owner of the fields that are applied, as the cluster remembers it.
pub const FIELD_MANAGER: &str = "selvage";
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the resource of a kind that every cluster knows; core kinds have
/// no group.
pub fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Returns `metadata.name`.
pub fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// An object by kind and name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reference {
    pub kind: ApiResource,
    pub name: String,
}

impl Reference {
    /// Returns kind and name for messages: `Pod hello`.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind.kind, self.name)
    }
}

/// Objects of one kind, in a namespace or in the entire cluster.
#[derive(Clone)]
pub struct Objects {
    api: Api<DynamicObject>,
    kind: ApiResource,
}

impl Objects {
    pub fn namespaced(client: &Client, namespace: &str, kind: &ApiResource) -> Self {
        let api = Api::namespaced_with(client.clone(), namespace, kind);
        Self { api, kind: kind.clone() }
    }

    /// Returns the API of a kind that has no namespaces, or of all namespaces.
    pub fn all(client: &Client, kind: &ApiResource) -> Self {
        Self { api: Api::all_with(client.clone(), kind), kind: kind.clone() }
    }

    fn title(&self, doing: &str, name: &str) -> String {
        format!("{doing} {} {name}", self.kind.kind)
    }

    /// Returns an object; none when it is not there.
    pub async fn get(&self, name: &str) -> Result<Option<DynamicObject>> {
        self.api.get_opt(name).await.context(&self.title("reading", name))
    }

    /// Returns an object as JSON; none when it is not there.
    pub async fn get_value(&self, name: &str) -> Result<Option<Value>> {
        Ok(self.get(name).await?.and_then(|found| serde_json::to_value(found).ok()))
    }

    pub async fn get_metadata(
        &self,
        name: &str,
    ) -> Result<Option<PartialObjectMeta<DynamicObject>>> {
        self.api.get_metadata_opt(name).await.context(&self.title("looking for", name))
    }

    pub async fn list(&self, params: &ListParams) -> Result<Vec<DynamicObject>> {
        let found = self.api.list(params).await;
        Ok(found.context(&format!("listing {}", self.kind.plural))?.items)
    }

    /// Lists names and labels; nothing where the cluster has no such kind.
    pub async fn list_metadata(
        &self,
        params: &ListParams,
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>> {
        let found = ignore_not_found(self.api.list_metadata(params).await);
        let found = found.context(&format!("listing {}", self.kind.plural))?;
        Ok(found.map(|list| list.items).unwrap_or_default())
    }

    /// Makes an object as given by server-side apply, and owns the fields.
    pub async fn apply(&self, object: &Value) -> Result<DynamicObject> {
        self.apply_as(object, &PatchParams::apply(FIELD_MANAGER).force()).await
    }

    /// Asks whether an object would be taken; nothing is changed.
    pub async fn apply_dry_run(&self, object: &Value) -> Result<DynamicObject> {
        self.apply_as(object, &PatchParams::apply(FIELD_MANAGER).force().dry_run()).await
    }

    /// Applies with a field manager of the caller's choice.
    pub async fn apply_as(&self, object: &Value, params: &PatchParams) -> Result<DynamicObject> {
        let name = name(object);
        let applied = self.api.patch(name, params, &Patch::Apply(object)).await;
        applied.context(&format!("{} {name}", self.kind.kind))
    }

    /// Merges a patch into an object that is there.
    pub async fn merge(&self, name: &str, patch: &Value) -> Result<DynamicObject> {
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patched = self.api.patch(name, &params, &Patch::Merge(patch)).await;
        patched.context(&self.title("changing", name))
    }

    /// Begins to remove an object and what it owns; it may be gone already.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<()> {
        let removed = ignore_not_found(self.api.delete(name, params).await);
        removed.context(&self.title("removing", name)).map(drop)
    }

    /// Waits until an object is gone.
    pub async fn wait_deleted(&self, name: &str, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while let Some(found) = self.get(name).await? {
            if Instant::now() >= deadline {
                let what = format!("{} {name}", self.kind.kind.to_lowercase());
                return Err(Error::NotDeleted { what, reason: remaining(&found) });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Removes an object and what it owns, and waits until all of it is gone.
    pub async fn delete_and_wait(&self, name: &str, timeout: Duration) -> Result<()> {
        self.delete(name, &DeleteParams::foreground()).await?;
        self.wait_deleted(name, timeout).await
    }

    /// Watches from a resource version on; wants a client for streams.
    pub async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<DynamicObject>>> + use<>> {
        let doing = format!("watching {}", self.kind.plural);
        let events = self.api.watch(params, version).await.context(&doing)?;
        Ok(events.map(move |event| event.context(&doing)))
    }
}

/// Reasons that an object gives for being there still.
fn remaining(object: &DynamicObject) -> String {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let current =
        conditions.into_iter().flatten().filter(|condition| condition["status"] == "True");
    let texts: Vec<&str> = current.filter_map(|condition| condition["message"].as_str()).collect();
    let finalizers = object.meta().finalizers.iter().flatten();
    let finalizers: Vec<&str> = finalizers.map(String::as_str).collect();
    match (texts.as_slice(), finalizers.as_slice()) {
        ([], []) => String::new(),
        ([], held) => format!(": finalizers {}", held.join(", ")),
        (texts, _) => format!(": {}", texts.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_go_says_why() {
        let of = |value: Value| remaining(&serde_json::from_value(value).unwrap());
        assert_eq!(of(json!({ "metadata": {} })), "");
        assert_eq!(of(json!({ "metadata": { "finalizers": ["a/b"] } })), ": finalizers a/b");
        let conditions = json!([
            { "status": "True", "message": "one pod is left" },
            { "status": "False", "message": "all read" },
        ]);
        let stuck = json!({ "metadata": { "finalizers": ["a/b"] }, "status": { "conditions": conditions } });
        assert_eq!(of(stuck), ": one pod is left");
    }
}
