//! Pages that are no methods: what they tell of others is for no key of theirs.

use http::StatusCode;
use tower::{Service, ServiceExt};

use super::*;

/// Status of a page, asked for with what a client shows.
async fn status(client: &Client, path: &'static str) -> StatusCode {
    let mut channel = client.channel.clone();
    let mut request = http::Request::new(tonic::body::Body::empty());
    *request.uri_mut() = path.parse().unwrap();
    *request.version_mut() = http::Version::HTTP_2;
    if let Some(token) = &client.token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
    }
    channel.ready().await.unwrap().call(request).await.unwrap().status()
}

/// A page of counts names what runs on a machine, whosever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_reads_no_counts_of_others() {
    let selvage = Selvage::up(&[]);
    let admin = Client::admin(&selvage).await;
    for path in ["/metrics", "/metrics/node"] {
        assert_eq!(status(&admin, path).await, StatusCode::OK, "{path}");
        let nobody = Client::anonymous(&selvage).await;
        assert_eq!(status(&nobody, path).await, StatusCode::UNAUTHORIZED, "{path}");
        for (kind, name) in STOLEN {
            let thief = admin.stolen(&selvage, name).await;
            // A Prometheus joins as a node.
            let scrapes = kind == MachineKind::Node && path == "/metrics/node";
            let told = if scrapes { StatusCode::OK } else { StatusCode::FORBIDDEN };
            assert_eq!(status(&thief, path).await, told, "{name}: {path}");
        }
    }
}
