//! Passwords: argon2id on the blocking pool, so many at a time.

use std::sync::Arc;

use argon2::{
    Algorithm, Argon2, Params, PasswordHash, Version,
    password_hash::phc::{Output, ParamsString, Salt},
};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::{
    error::{Error, Result},
    hash_memory::HashMemory,
    options::HashCost,
    secrets,
};

/// More than this no password of ours has; the rest is not worth hashing.
const LONGEST: usize = 1024;

/// Number of passwords that may wait for each that is being hashed. Further
/// callers are refused at once, rather than at their deadline.
const QUEUE: usize = 64;

/// Hashes passwords and compares them with hashes.
#[derive(Clone)]
pub(crate) struct Hasher {
    params: Params,
    memory: Arc<HashMemory>,
    permits: Arc<Semaphore>,
    /// Those who hash and those who wait for it.
    places: Arc<Semaphore>,
    /// Stands in for the hash of a user who has none, so that the login
    /// takes as long as anybody's.
    dummy: Arc<str>,
}

impl Hasher {
    pub(crate) async fn new(cost: HashCost, concurrency: usize) -> Result<Self> {
        let params = Params::new(cost.memory_kib, cost.iterations, cost.lanes, None)
            .map_err(|error| Error::settings("argon2", error.to_string()))?;
        let mut hasher = Self {
            memory: Arc::new(HashMemory::new(params.block_count())),
            params,
            permits: Arc::new(Semaphore::new(concurrency.max(1))),
            places: Arc::new(Semaphore::new(concurrency.max(1) * QUEUE)),
            dummy: "".into(),
        };
        hasher.dummy = hasher.hash(secrets::random_text()).await?.into();
        Ok(hasher)
    }

    /// The PHC string of a password.
    pub(crate) async fn hash(&self, password: Zeroizing<String>) -> Result<String> {
        self.run(move |hasher| {
            let made = PasswordHash {
                algorithm: Algorithm::Argon2id.ident(),
                version: Some(Version::V0x13.into()),
                params: ParamsString::try_from(&hasher.params).map_err(failed)?,
                salt: Some(Salt::generate()),
                hash: None,
            };
            let output = hasher.compute(password.as_bytes(), &made)?;
            Ok(PasswordHash { hash: Some(output), ..made }.to_string())
        })
        .await
    }

    /// Returns whether the password is that of the hash. Without a hash the
    /// answer is no, after the same work.
    pub(crate) async fn verify(
        &self,
        password: Zeroizing<String>,
        hash: Option<String>,
    ) -> Result<bool> {
        self.run(move |hasher| {
            let usable = hash.filter(|_| password.len() <= LONGEST);
            let parsed = usable.as_deref().and_then(|hash| {
                PasswordHash::new(hash)
                    .inspect_err(|error| tracing::error!(%error, "stored password hash is damaged"))
                    .ok()
            });
            let known = parsed.is_some();
            let parsed = match parsed {
                Some(parsed) => parsed,
                None => PasswordHash::new(&hasher.dummy).map_err(failed)?,
            };
            let shown = &password.as_bytes()[..password.len().min(LONGEST)];
            let fits = parsed.hash.as_ref() == Some(&hasher.compute(shown, &parsed)?);
            Ok(known && fits)
        })
        .await
    }

    /// Returns whether the hash was made at another cost than is asked for now.
    pub(crate) fn is_outdated(&self, hash: &str) -> bool {
        let Ok(parsed) = PasswordHash::new(hash) else { return true };
        let Ok(params) = Params::try_from(&parsed) else { return true };
        parsed.algorithm.as_str() != "argon2id"
            || (params.m_cost(), params.t_cost(), params.p_cost())
                != (self.params.m_cost(), self.params.t_cost(), self.params.p_cost())
    }

    /// The output for a password by the algorithm, cost and salt that `by`
    /// names.
    fn compute(&self, password: &[u8], by: &PasswordHash) -> Result<Output> {
        let algorithm = Algorithm::try_from(by.algorithm.as_str()).map_err(failed)?;
        let version =
            by.version.map_or(Ok(Version::default()), Version::try_from).map_err(failed)?;
        let params = Params::try_from(by).map_err(failed)?;
        let salt = by.salt.as_ref().ok_or_else(|| failed("the hash has no salt"))?;
        let mut memory = self.memory.take(params.block_count())?;
        let mut room = Zeroizing::new([0; Output::MAX_LENGTH]);
        let output = &mut room[..params.output_len().unwrap_or(Params::DEFAULT_OUTPUT_LEN)];
        Argon2::new(algorithm, version, params)
            .hash_password_into_with_memory(password, salt.as_ref(), output, &mut memory)
            .map_err(failed)?;
        Output::new(output).map_err(failed)
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _place = self.places.try_acquire().map_err(|_| Error::Busy)?;
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(failed)?;
        let hasher = self.clone();
        tokio::task::spawn_blocking(move || {
            // Held by the work, not by the call: a caller who goes away must
            // not make room while the hash is still being computed.
            let _permit = permit;
            work(&hasher)
        })
        .await
        .map_err(failed)?
    }
}

fn failed(error: impl ToString) -> Error {
    Error::Hashing(error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use argon2::{PasswordHasher, PasswordVerifier};

    use super::*;

    fn cheap(iterations: u32) -> HashCost {
        HashCost { memory_kib: 64, iterations, lanes: 1 }
    }

    fn text(text: &str) -> Zeroizing<String> {
        Zeroizing::new(text.into())
    }

    #[tokio::test]
    async fn a_password_fits_its_own_hash_only() {
        let hasher = Hasher::new(cheap(1), 2).await.unwrap();
        let hash = hasher.hash(text("correct horse")).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=64,t=1,p=1$"), "{hash}");
        assert!(hasher.verify(text("correct horse"), Some(hash.clone())).await.unwrap());
        assert!(!hasher.verify(text("correct horsf"), Some(hash.clone())).await.unwrap());
        assert!(!hasher.verify(text(""), Some(hash)).await.unwrap());
    }

    #[tokio::test]
    async fn hashes_are_those_of_any_argon2() {
        let hasher = Hasher::new(cheap(2), 2).await.unwrap();
        let theirs = Argon2::new(
            Algorithm::Argon2id,
            Version::V0x13,
            Params::new(128, 3, 2, Some(24)).unwrap(),
        );
        let hash = hasher.hash(text("correct horse")).await.unwrap();
        assert!(theirs.verify_password(b"correct horse", hash.as_str()).is_ok());
        let hash = theirs.hash_password(b"correct horse").unwrap().to_string();
        assert!(hasher.verify(text("correct horse"), Some(hash.clone())).await.unwrap());
        assert!(!hasher.verify(text("correct horsf"), Some(hash)).await.unwrap());
        let again = hasher.hash(text("correct horse")).await.unwrap();
        assert_ne!(again, hasher.hash(text("correct horse")).await.unwrap(), "salted");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_burst_leaves_no_more_memory_than_there_are_slots() {
        let hasher = Hasher::new(cheap(1), 2).await.unwrap();
        let mut burst = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let hasher = hasher.clone();
            burst.spawn(async move { hasher.hash(text("correct horse")).await.unwrap() });
        }
        burst.join_all().await;
        assert!((1..=2).contains(&hasher.memory.spare_buffers()));
    }

    #[tokio::test]
    async fn without_a_usable_hash_the_answer_is_no() {
        let hasher = Hasher::new(cheap(1), 1).await.unwrap();
        assert!(!hasher.verify(text("anything"), None).await.unwrap());
        assert!(!hasher.verify(text("anything"), Some("damaged".into())).await.unwrap());
        let long = "x".repeat(LONGEST + 1);
        let hash = hasher.hash(text(&long)).await.unwrap();
        assert!(!hasher.verify(text(&long), Some(hash)).await.unwrap());
    }

    #[tokio::test]
    async fn another_cost_makes_a_hash_outdated_but_not_wrong() {
        let (old, new) =
            (Hasher::new(cheap(1), 1).await.unwrap(), Hasher::new(cheap(2), 1).await.unwrap());
        let hash = old.hash(text("correct horse")).await.unwrap();
        assert!(!old.is_outdated(&hash));
        assert!(new.is_outdated(&hash));
        assert!(new.verify(text("correct horse"), Some(hash)).await.unwrap());
    }

    #[tokio::test]
    async fn a_full_queue_is_reported_at_once() {
        let hasher = Hasher::new(cheap(1), 1).await.unwrap();
        let busy = Arc::clone(&hasher.places).acquire_many_owned(QUEUE as u32).await.unwrap();
        assert!(matches!(hasher.hash(text("correct horse")).await, Err(Error::Busy)));
        drop(busy);
        assert!(hasher.hash(text("correct horse")).await.is_ok());
    }

    #[tokio::test]
    async fn a_cost_that_cannot_work_is_refused_by_name() {
        let cost = HashCost { memory_kib: 1, iterations: 0, lanes: 1 };
        let error = Hasher::new(cost, 1).await.err().unwrap();
        assert!(error.to_string().starts_with("argon2: "), "{error}");
    }
}
