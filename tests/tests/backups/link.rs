//! The way to an object store.

use std::net::SocketAddr;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A connection to an object store that can be cut.
pub(crate) struct Link {
    address: SocketAddr,
    up: watch::Sender<bool>,
}

impl Link {
    pub(crate) async fn to(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (up, state) = watch::channel(true);
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut state = state.clone();
                tokio::spawn(async move {
                    let led = async {
                        let mut onward = TcpStream::connect(store).await?;
                        tokio::io::copy_bidirectional(&mut client, &mut onward).await
                    };
                    tokio::select! {
                        biased;
                        _ = state.wait_for(|up| !up) => {}
                        _ = led => {}
                    }
                });
            }
        });
        Self { address, up }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn cut(&self) {
        self.up.send_replace(false);
    }

    pub(crate) fn mend(&self) {
        self.up.send_replace(true);
    }
}
