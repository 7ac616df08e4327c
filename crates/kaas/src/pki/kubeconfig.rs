//! The file by which people and programs reach a cluster.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;
use zeroize::Zeroizing;

use super::Issued;

/// Returns a kubeconfig. JSON is YAML, and has no quoting that could go wrong.
pub fn kubeconfig(
    cluster: &str,
    server: &str,
    authority: &str,
    user: &str,
    issued: &Issued,
) -> Zeroizing<String> {
    let encode = |text: &str| BASE64_STANDARD.encode(text);
    let context = format!("{user}@{cluster}");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": cluster,
            "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority-data": encode(authority),
            },
        }],
        "users": [{
            "name": user,
            "user": {
                "client-certificate-data": encode(&issued.certificate),
                "client-key-data": encode(&issued.key),
            },
        }],
        "contexts": [{
            "name": context,
            "context": { "cluster": cluster, "user": user },
        }],
        "current-context": context,
    });
    // A tree of strings always has a text.
    Zeroizing::new(serde_json::to_string_pretty(&config).unwrap_or_default() + "\n")
}
