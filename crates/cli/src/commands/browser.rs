//! Logging in at somebody else's page: a browser goes there and comes back to a
//! port of this machine, with a code that only this program can use.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use selvage_api::selvage::identity::{
    FinishLoginRequest, FinishLoginResponse, ListLoginProvidersRequest, LoginProvider,
    identity_service_client::IdentityServiceClient,
};
use selvage_kit::identity::Secret;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use url::Url;

use crate::{Error, client::Client, session::Session, suggest};

/// Time that somebody has to log in at the provider.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(600);
/// Time that a browser has to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest request that is read.
const LONGEST: usize = 16 * 1024;

/// Logs in through a provider; without a name, through the only one.
pub(super) async fn login(
    name: &str,
    client: &Client,
    session: &mut Session<'_>,
) -> Result<FinishLoginResponse, Error> {
    let provider = provider(name, client).await?;
    let failed = |source| Error::File { action: "listen on", path: "127.0.0.1".into(), source };
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let (verifier, state) = (Secret::new(random()), random());
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose()));
    let mut url = entrance(&provider)?;
    url.query_pairs_mut()
        .append_pair("port", &port.to_string())
        .append_pair("challenge", &challenge)
        .append_pair("state", &state);
    session.io.say(&format!("Log in with {} in your browser:\n  {url}", provider.label))?;
    open(&url, session);
    let code = match tokio::time::timeout(BROWSER_TIMEOUT, visitor(&listener, &state)).await {
        Ok(code) => code?,
        Err(_) => return Err(Error::Unexpected("nobody came back from the browser".into())),
    };
    let request =
        FinishLoginRequest { code: code.expose().into(), verifier: verifier.expose().into() };
    client
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).finish_login(request).await
        })
        .await
}

async fn provider(name: &str, client: &Client) -> Result<LoginProvider, Error> {
    let listed = client
        .call(ListLoginProvidersRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).list_login_providers(request).await
        })
        .await?;
    let mut all = listed.providers;
    let names: Vec<String> = all.iter().map(|one| one.name.clone()).collect();
    let chosen = if name.is_empty() && all.len() == 1 {
        Some(0)
    } else {
        all.iter().position(|one| one.name == name)
    };
    match chosen {
        Some(at) => Ok(all.swap_remove(at)),
        None if all.is_empty() => Err(Error::invalid("the server has no OIDC provider")),
        None if name.is_empty() => {
            Err(Error::invalid(format!("say through which: --oidc {}", names.join(" or --oidc "))))
        }
        None => Err(Error::Unknown {
            kind: "OIDC provider",
            name: name.into(),
            suggestions: suggest::closest(name, names.iter().map(String::as_str)),
            hint: format!("there are {}", names.join(", ")),
        }),
    }
}

/// Address at which the browser begins. What the server says is shown to a person and
/// given to a browser, so it must be an address and nothing else.
fn entrance(provider: &LoginProvider) -> Result<Url, Error> {
    let url = Url::parse(&provider.login_url).ok();
    url.filter(|url| matches!(url.scheme(), "https" | "http") && url.has_host()).ok_or_else(|| {
        Error::Unexpected(
            "the server does not say where to log in: it needs auth.public_url".into(),
        )
    })
}

/// 256 random bits.
fn random() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// Opens a browser where there seems to be one. The address is on the screen in
/// any case.
fn open(url: &Url, session: &Session<'_>) {
    let desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| session.io.var(name).is_some());
    let browser = match session.io.var("BROWSER") {
        Some(browser) => browser,
        None if desktop && session.io.prompt.is_some() => "xdg-open",
        None => return,
    };
    let mut command = Command::new(browser);
    command.arg(url.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = command.spawn();
}

/// Waits for the browser that brings our state; gives the code.
async fn visitor(listener: &TcpListener, state: &str) -> Result<Secret, Error> {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let asked = tokio::time::timeout(REQUEST_TIMEOUT, request(&mut stream)).await;
        let found = asked.ok().flatten().and_then(|path| brought(&path, state));
        let (status, text) = match &found {
            Some(Ok(_)) => ("200 OK", "You are logged in. This window can be closed."),
            Some(Err(_)) => ("200 OK", "The login did not work. This window can be closed."),
            None => ("404 Not Found", "Nothing here."),
        };
        answer(&mut stream, status, text).await;
        match found {
            Some(Ok(code)) => return Ok(code),
            Some(Err(reason)) => {
                return Err(Error::Invalid {
                    message: format!("the login did not work: {reason}"),
                    hints: vec!["the server's log says more".into()],
                });
            }
            None => {}
        }
    }
}

/// Reads the path of a request.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    while !read.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut part = [0; 1024];
        let count = stream.read(&mut part).await.ok()?;
        read.extend_from_slice(part.get(..count)?);
        if count == 0 || read.len() > LONGEST {
            return None;
        }
    }
    let text = String::from_utf8(read).ok()?;
    let mut words = text.lines().next()?.split(' ');
    (words.next() == Some("GET")).then(|| words.next().map(str::to_owned)).flatten()
}

/// The code that a browser brings, or the reason why it brings none; nothing
/// for a visitor whom we did not send.
fn brought(path: &str, state: &str) -> Option<Result<Secret, String>> {
    let url = Url::parse("http://127.0.0.1/").ok()?.join(path).ok()?;
    let value = |name: &str| {
        url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    if url.path() != "/" || value("state")? != state {
        return None;
    }
    let plain =
        |word: String| word.chars().filter(|c| c.is_ascii_lowercase() || *c == '_').collect();
    match (value("code"), value("error")) {
        (Some(code), None) => Some(Ok(Secret::new(code))),
        (_, error) => Some(Err(error.map(plain).unwrap_or_default())),
    }
}

async fn answer(stream: &mut TcpStream, status: &str, text: &str) {
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    // Whether the browser reads it makes no difference to the login.
    let _ = stream.write_all(reply.as_bytes()).await;
    let _ = stream.shutdown().await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_whom_we_sent_is_heard() {
        let code =
            |path: &str| brought(path, "s1").map(|found| found.map(|it| it.expose().to_owned()));
        assert_eq!(code("/?code=a%26b&state=s1"), Some(Ok("a&b".into())));
        assert_eq!(code("/?error=not_allowed&state=s1"), Some(Err("not_allowed".into())));
        assert_eq!(code("/?error=%1b%5b31mX_y&state=s1"), Some(Err("m_y".into())));
        for stranger in ["/", "/favicon.ico", "/?code=a&state=s2", "/?code=a", "/x?code=a&state=s1"]
        {
            assert_eq!(code(stranger), None, "{stranger}");
        }
    }
}
