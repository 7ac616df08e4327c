//! Services and pages of a process, collected from its parts.

use std::{path::PathBuf, sync::Arc};

use selvage_kit::{
    serve::{
        self, Limits, MetricsPage, Readiness, Server, Services, Socket, WebSocketPage, relay::Relay,
    },
    tasks::Tasks,
    telemetry::Metrics,
};
use selvage_work::{Engine, OperationsApi};
use tokio::sync::watch;

/// A unix socket that is bound and not yet served.
pub struct UnixSocket {
    /// Name, for the log and the ready file.
    pub name: &'static str,
    /// Path of the socket.
    pub path: PathBuf,
    /// The socket.
    pub socket: Socket,
}

/// Services and pages of a process. Each part adds its own.
pub struct Mount {
    services: Services,
    pages: axum::Router,
    home: Option<axum::Router>,
    metrics: Metrics,
    metrics_pages: Vec<(&'static str, MetricsPage)>,
    web_sockets: Vec<(&'static str, WebSocketPage)>,
    ready: Vec<Readiness>,
    relay: Option<Arc<dyn Relay>>,
    engines: Vec<Engine>,
    tasks: Tasks,
}

impl Mount {
    /// Creates a mount without services.
    pub fn new(metrics: Metrics, tasks: Tasks) -> Self {
        Self {
            services: Services::default(),
            pages: axum::Router::new(),
            home: None,
            metrics,
            metrics_pages: Vec::new(),
            web_sockets: Vec::new(),
            ready: Vec::new(),
            relay: None,
            engines: Vec::new(),
            tasks,
        }
    }

    /// gRPC services: add generated servers here.
    pub fn services(&mut self) -> &mut Services {
        &mut self.services
    }

    /// Metrics of the process: register collectors here.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Background tasks of the process.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Adds plain pages. They check for themselves who may see them.
    pub fn pages(&mut self, pages: axum::Router) {
        self.pages = std::mem::take(&mut self.pages).merge(pages);
    }

    /// Adds plain pages, among them the one at `/`, which else leads to the
    /// page about the API. One part of a process has it.
    pub fn home(&mut self, pages: axum::Router) {
        self.home = Some(pages);
    }

    /// Adds a page of metrics beside `/metrics`, for those who may see that.
    pub fn metrics_page(&mut self, path: &'static str, page: MetricsPage) {
        self.metrics_pages.push((path, page));
    }

    /// Adds a path where web sockets are opened.
    pub fn web_socket(&mut self, path: &'static str, page: WebSocketPage) {
        self.web_sockets.push((path, page));
    }

    /// Makes the process as ready as this says, to `/readiness` and to gRPC's
    /// health. The process is ready when all say so.
    pub fn ready(&mut self, readiness: Readiness) {
        self.ready.push(readiness);
    }

    /// Passes calls on that are meant for other processes.
    pub fn relay(&mut self, relay: Arc<dyn Relay>) {
        self.relay = Some(relay);
    }

    /// Shows the operations of an engine in the OperationService of the
    /// process.
    pub fn operations(&mut self, engine: &Engine) {
        self.engines.push(engine.clone());
    }

    /// Makes a server of all that was added.
    pub async fn server(
        mut self,
        limits: Limits,
        origins: Vec<String>,
    ) -> Result<Server, serve::Error> {
        self.services.add(OperationsApi::new(self.engines).service());
        let mut server = Server::new(self.services, self.metrics, limits).await?;
        for (path, page) in self.metrics_pages {
            server = server.metrics_page(path, page);
        }
        for (path, page) in self.web_sockets {
            server = server.web_socket(path, page);
        }
        if let Some(relay) = self.relay {
            server = server.relay(relay);
        }
        if let Some(ready) = all_ready(&self.tasks, self.ready) {
            server = server.ready(ready);
        }
        if let Some(home) = self.home {
            server = server.home(home);
        }
        Ok(server.pages(self.pages).origins(origins))
    }
}

/// The first reason for which one of them is not ready.
fn first_reason(all: &[Readiness]) -> Result<(), String> {
    all.iter().try_for_each(|one| one.borrow().clone())
}

/// One readiness of several.
fn all_ready(tasks: &Tasks, mut all: Vec<Readiness>) -> Option<Readiness> {
    if all.len() < 2 {
        return all.pop();
    }
    let (sender, receiver) = watch::channel(first_reason(&all));
    let stop = tasks.token().clone();
    let following = async move {
        while !all.is_empty() {
            let changes = all.iter_mut().map(|one| Box::pin(one.changed()));
            let (changed, index, _) = futures::future::select_all(changes).await;
            if changed.is_err() {
                // The last word of one that has ended stands, if it is good.
                if all.remove(index).borrow().is_err() {
                    return;
                }
            }
            let now = first_reason(&all);
            sender.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
        }
        std::future::pending::<()>().await;
    };
    tasks.spawn("readiness", async move {
        let _ = stop.run_until_cancelled(following).await;
    });
    Some(receiver)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn a_process_is_as_ready_as_its_least_ready_part() {
        let tasks = Tasks::new(CancellationToken::new());
        let (store, of_store) = watch::channel(Ok(()));
        let (dme, of_dme) = watch::channel(Err("dme: waits".to_owned()));
        let mut ready = all_ready(&tasks, vec![of_store, of_dme]).unwrap();
        assert_eq!(*ready.borrow(), Err("dme: waits".to_owned()));
        dme.send(Ok(())).unwrap();
        ready.wait_for(Result::is_ok).await.unwrap();
        store.send(Err("store: away".into())).unwrap();
        let away = ready.wait_for(Result::is_err).await.unwrap().clone();
        assert_eq!(away, Err("store: away".to_owned()));
        // A part that ended well does not hold up the others.
        drop(dme);
        store.send(Ok(())).unwrap();
        ready.wait_for(Result::is_ok).await.unwrap();
        tasks.token().cancel();
    }
}
