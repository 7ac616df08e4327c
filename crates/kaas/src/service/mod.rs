//! The services of the part.

mod cluster;
mod compat;
mod describe;
mod extensions;

pub use cluster::ClusterApi;
pub use extensions::Clusters;

use selvage_kit::identity::Identity;
use tonic::Request;

use crate::{Caller, FORCE, ORGANISATION, Origin, REQUEST_ID};

/// Identity of the caller.
fn caller<T>(request: &Request<T>) -> Caller {
    let nobody = Identity::anonymous();
    Caller::from(request.extensions().get::<Identity>().unwrap_or(&nobody))
}

fn header<'a, T>(request: &'a Request<T>, name: &str) -> &'a str {
    request.metadata().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn origin<T>(request: &Request<T>) -> Origin {
    Origin {
        organisation: header(request, ORGANISATION).to_owned(),
        request_id: header(request, REQUEST_ID).to_owned(),
        force: header(request, FORCE) == "true",
    }
}
