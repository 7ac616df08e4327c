//! No provider: clusters can be seen, and none can be made.

use async_trait::async_trait;

use super::{Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider};
use super::{Request, Wipe};

/// Stands where machines cannot be had, and says why.
#[derive(Debug, Clone)]
pub struct NoProvider {
    pub problem: String,
}

impl NoProvider {
    fn refused<T>(&self) -> Result<T, Error> {
        Err(Error::Unavailable(self.problem.clone()))
    }
}

#[async_trait]
impl Provider for NoProvider {
    fn name(&self) -> &'static str {
        "none"
    }

    fn capabilities(&self) -> Capabilities {
        let problem = Some(self.problem.clone());
        Capabilities { in_place: false, simulated: false, disposable: false, problem }
    }

    async fn offers(&self, _: &str) -> Result<Vec<Offer>, Error> {
        Ok(Vec::new())
    }

    async fn acquire(&self, _: &OperationId, _: &Request) -> Result<Acquired, Error> {
        self.refused()
    }

    async fn observe(&self, _: &OperationId) -> Result<Observed, Error> {
        self.refused()
    }

    async fn release(&self, _: &OperationId, _: Wipe) -> Result<bool, Error> {
        self.refused()
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        Ok(Vec::new())
    }
}
