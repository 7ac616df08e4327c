//! Sockets for the kubelet.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use selvage_kit::serve::Lenient;
use tokio::net::UnixListener;
use tokio_stream::{StreamExt, wrappers::UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Server, server::Router};

use crate::{
    DRIVER, Error, Result,
    driver::Shared,
    registration::Registrar,
    wire::{
        csi::{
            controller_server::ControllerServer, identity_server::IdentityServer,
            node_server::NodeServer,
        },
        registration::registration_server::RegistrationServer,
    },
};

/// Socket of the driver, below the kubelet's folder.
pub(crate) fn driver_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER).join("csi.sock")
}

/// Socket by which the kubelet finds the driver.
pub(crate) fn registration_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
}

/// Takes the place of a socket that an earlier process left.
fn bind(path: &Path) -> Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::file(folder))?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::file(path)(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(Error::file(path))?;
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(path, private).map_err(Error::file(path))?;
    Ok(listener)
}

async fn answer(router: Router, path: PathBuf, stop: CancellationToken) -> Result<()> {
    // The kubelet calls a socket by its path, which HTTP/2 does not take.
    let incoming = UnixListenerStream::new(bind(&path)?).map(|taken| taken.map(Lenient::new));
    let served = router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await;
    let _ = fs::remove_file(&path);
    served.map_err(|error| Error::Precondition(format!("{}: {error}", path.display())))
}

/// Answers the kubelet until told to stop. The driver answers before it
/// registers.
pub(crate) async fn run(shared: Shared, stop: CancellationToken) -> Result<()> {
    let kubelet = shared.kubelet.clone();
    let endpoint = driver_socket(&kubelet);
    let driver = Server::builder()
        .add_service(IdentityServer::new(shared.clone()))
        .add_service(ControllerServer::new(shared.clone()))
        .add_service(NodeServer::new(shared));
    let registrar = Registrar { endpoint: endpoint.clone() };
    let registrar = Server::builder().add_service(RegistrationServer::new(registrar));
    let register = registration_socket(&kubelet);
    tokio::try_join!(
        answer(driver, endpoint, stop.clone()),
        answer(registrar, register, stop.clone())
    )?;
    Ok(())
}
