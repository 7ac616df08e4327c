//! Changes of a zone on another name server: RFC 2136, signed by TSIG (RFC 8945).

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode, UpdateMessage},
    rr::{DNSClass, Name, RData, Record, RecordType, TSigner, rdata::tsig::TsigAlgorithm},
};
use selvage_kit::{clock::Clock, config::SecretFile};
use selvage_part::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Timeout of one update, from the connection to its answer.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds by which the clocks of both may differ.
const FUDGE: u16 = 300;
/// Types of records that instances have. Others at the same names are left alone.
const TYPES: [RecordType; 3] = [RecordType::A, RecordType::AAAA, RecordType::SRV];

/// The name server whose zones are kept by updates.
pub(crate) struct Primary {
    /// `HOST:PORT`.
    pub(crate) server: String,
    pub(crate) key_name: Name,
    pub(crate) algorithm: TsigAlgorithm,
    /// Read for each update, so that a new secret needs no restart.
    pub(crate) key_file: SecretFile,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Records of a name, in place of those that it has.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) name: Name,
    pub(crate) records: Vec<Record>,
}

impl Primary {
    /// Makes all changes, or none.
    pub(crate) async fn update(&self, zone: &Name, changes: &[Change]) -> Result<()> {
        let mut message = message(zone, changes);
        let now = u64::try_from(self.clock.now().as_second()).unwrap_or_default();
        let mut verifier = message.finalize(&self.signer()?, now)?.context("no signature")?;
        let bytes = message.to_vec()?;
        let answer = timeout(UPDATE_TIMEOUT, self.ask(&bytes)).await;
        let answer = answer.context("it does not answer")??;
        let verified = verifier.verify(&answer);
        // A key that the server does not know signs no answer.
        let read = Message::from_vec(&answer).context("its answer cannot be read")?;
        match (read.metadata.response_code, verified) {
            _ if read.metadata.id != message.metadata.id => bail!("it answered something else"),
            (ResponseCode::NoError, Ok(_)) => Ok(()),
            (ResponseCode::NoError, Err(error)) => {
                bail!("its answer is not signed by the key: {error}")
            }
            (ResponseCode::NotAuth | ResponseCode::BADVERS, _) => bail!(
                "it does not accept the key {}: check dns.update.key_name, algorithm and \
                 key_file, and the clocks",
                self.key_name
            ),
            (ResponseCode::Refused, _) => bail!(
                "it refuses updates of {zone} by the key {}: it has to allow them",
                self.key_name
            ),
            (code, _) => bail!("it answered {code}"),
        }
    }

    fn signer(&self) -> Result<TSigner> {
        let text = self.key_file.read().context("dns.update.key_file")?;
        let key = BASE64_STANDARD.decode(text.expose().trim());
        // What was read is a secret, so nothing of it is told.
        let key = key.ok().filter(|key| !key.is_empty());
        let key = key.context("dns.update.key_file: it holds no key in base64")?;
        Ok(TSigner::new(key, self.algorithm.clone(), self.key_name.clone(), FUDGE)?)
    }

    async fn ask(&self, message: &[u8]) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.server).await?;
        let length = u16::try_from(message.len()).context("the update is too long")?;
        stream.write_all(&[&length.to_be_bytes(), message].concat()).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }
}

/// An update: of each name first all records go, then those come that it has now.
fn message(zone: &Name, changes: &[Change]) -> Message {
    let mut message = Message::new(rand::random(), MessageType::Query, OpCode::Update);
    let mut of = Query::query(zone.clone(), RecordType::SOA);
    of.set_query_class(DNSClass::IN);
    message.add_zone(of);
    for change in changes {
        for kind in TYPES {
            let mut gone = Record::from_rdata(change.name.clone(), 0, RData::Update0(kind));
            gone.dns_class = DNSClass::ANY;
            message.add_update(gone);
        }
        message.add_updates(change.records.iter().cloned());
    }
    message
}
