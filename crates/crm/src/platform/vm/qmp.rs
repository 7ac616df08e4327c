//! Questions to a machine over its control socket. The protocol is a line of
//! JSON a message.

use std::{io, path::Path, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufStream},
    net::UnixStream,
};

use super::user::User;

/// Time an answer may take.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Control(BufStream<UnixStream>);

impl Control {
    /// Connects; a machine that is not ready yet says so by not answering.
    pub(super) async fn open(socket: &Path, user: User) -> io::Result<Self> {
        let opened = async {
            let mut control = Self(BufStream::new(connect(socket, user).await?));
            control.line().await?;
            control.ask("qmp_capabilities").await?;
            Ok(control)
        };
        in_time(opened).await
    }

    /// Presses the button that turns it off; what comes of it is the guest's.
    pub(super) async fn press_power_button(&mut self) -> io::Result<()> {
        in_time(self.ask("system_powerdown")).await.map(drop)
    }

    async fn ask(&mut self, command: &str) -> io::Result<Value> {
        let asked = format!("{}\n", json!({"execute": command}));
        self.0.write_all(asked.as_bytes()).await?;
        self.0.flush().await?;
        loop {
            let mut message = self.line().await?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                let text = error["desc"].as_str().unwrap_or("refused").to_owned();
                return Err(io::Error::other(text));
            }
            // Events come between.
        }
    }

    async fn line(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

/// Connects to a socket of a machine's process. The process has the folder of
/// its sockets to itself and may put there whatever it likes: one that leads to
/// anybody else is refused.
pub(super) async fn connect(socket: &Path, user: User) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket).await?;
    if stream.peer_cred()?.uid() == user.number() {
        return Ok(stream);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the socket is not the machine's own"))
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(REPLY_TIMEOUT, work).await.map_err(|_| io::ErrorKind::TimedOut)?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn answers_are_found_between_events() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let machine = tokio::spawn(async move {
            let mut stream = BufStream::new(listener.accept().await.unwrap().0);
            let says = [
                "{\"QMP\": {}}\n{\"return\": {}}\n",
                "{\"event\": \"POWERDOWN\"}\n{\"return\": {}}\n",
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no button\"}}\n",
            ];
            let mut heard = String::new();
            for say in says {
                stream.write_all(say.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                stream.read_line(&mut heard).await.unwrap();
            }
            heard
        });
        let mut control = Control::open(&path, User::of_this_process()).await.unwrap();
        control.press_power_button().await.unwrap();
        let error = control.press_power_button().await.unwrap_err();
        assert_eq!(error.to_string(), "no button");
        assert!(machine.await.unwrap().contains("system_powerdown"));
    }

    #[tokio::test]
    async fn a_socket_of_somebody_else_is_not_talked_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        let user = User::of(std::net::Ipv4Addr::new(10, 101, 1, 2));
        let refused = Control::open(&path, user).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
