//! Questions to a component whether it is well.

use std::{path::PathBuf, time::Duration};

use tokio::{net::UnixStream, time::timeout};

/// No answer for so long counts as none.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A question to a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probe {
    /// A page on the loopback that answers with success.
    Page(String),
    /// A socket that takes connections.
    Socket(PathBuf),
}

/// Asks components.
#[derive(Clone)]
pub(crate) struct Prober {
    client: Option<reqwest::Client>,
}

impl Prober {
    pub(crate) fn new() -> Self {
        // Components show certificates of their own making on the loopback;
        // nothing is sent that a wrong one could use.
        let client = reqwest::Client::builder()
            .no_proxy()
            .danger_accept_invalid_certs(true)
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(1)
            .build();
        Self { client: client.ok() }
    }

    /// Says what is wrong.
    pub(crate) async fn ask(&self, probe: &Probe) -> Result<(), String> {
        match probe {
            Probe::Page(url) => self.page(url).await,
            Probe::Socket(path) => match timeout(TIMEOUT, UnixStream::connect(path)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(format!("its socket does not answer: {error}")),
                Err(_) => Err("its socket does not answer".into()),
            },
        }
    }

    async fn page(&self, url: &str) -> Result<(), String> {
        let client = self.client.as_ref().ok_or("there is no client for HTTP")?;
        let answer = client.get(url).send().await.map_err(|_| "it does not answer yet")?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let text = answer.text().await.unwrap_or_default();
        Err(format!("it answers {}: {}", status.as_u16(), worst(&text)))
    }
}

/// Lines that name what is wrong, of a page that also tells what is well.
fn worst(text: &str) -> String {
    // The API refuses in an object of its own.
    let refusal: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let refusal = refusal.as_ref().and_then(|refusal| refusal["message"].as_str());
    let text = refusal.unwrap_or(text);
    let bad: Vec<&str> = text.lines().filter(|line| line.starts_with("[-]")).collect();
    let lines = if bad.is_empty() { text.lines().take(1).collect() } else { bad };
    lines.join(", ").chars().filter(|letter| !letter.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn problems_are_listed_first() {
        let page = "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\nreadyz check failed\n";
        assert_eq!(super::worst(page), "[-]etcd failed: reason withheld");
        assert_eq!(super::worst("no\nmore"), "no");
        assert_eq!(super::worst(r#"{"kind":"Status","message":"forbidden"}"#), "forbidden");
    }
}
