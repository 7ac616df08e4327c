//! The process that answers: its store, and the controllers that share it.

use std::time::Duration;

use async_trait::async_trait;
use selvage_api::{
    edgeproto::{Controller, controller_api_client::ControllerApiClient},
    selvage::system::{GetStatusRequest, system_service_client::SystemServiceClient},
};
use tonic::{Code, transport::Channel};

use super::{Failure, Probe, failure};
use crate::facts::{self, Data, Section};

pub(super) struct Process {
    system: SystemServiceClient<Channel>,
    controllers: ControllerApiClient<Channel>,
    every: Duration,
}

impl Process {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        Self {
            system: SystemServiceClient::new(channel.clone()),
            controllers: ControllerApiClient::new(channel),
            every,
        }
    }

    async fn controllers(&mut self) -> Result<Vec<String>, tonic::Status> {
        let mut stream =
            self.controllers.show_controller(Controller::default()).await?.into_inner();
        let mut found = Vec::new();
        while let Some(controller) = stream.message().await? {
            found.extend(controller.key.map(|key| key.addr));
        }
        found.sort();
        Ok(found)
    }
}

#[async_trait]
impl Probe for Process {
    fn section(&self) -> Section {
        Section::Process
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let status = self.system.get_status(GetStatusRequest {}).await;
        let status = status.map_err(|status| failure(&status))?.into_inner();
        let controllers = match self.controllers().await {
            Ok(found) => found,
            Err(status) if status.code() == Code::Unimplemented => Vec::new(),
            Err(status) => return Err(failure(&status)),
        };
        let found = facts::Process {
            store: status.store,
            store_failure: status.store_failure,
            controllers,
        };
        Ok(Data::Process(found.into()))
    }
}
