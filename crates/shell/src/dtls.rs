//! The handshake with peers that are not ours.
//!
//! str0m's own insists on the extended master secret (RFC 7627); the original's
//! client was made before its library had that. This one asks for it, uses it
//! with everybody who has it, and does without otherwise. What it protects from
//! is a man in the middle whom both ends take for the other and who makes two
//! sessions with one secret. Here each end knows the fingerprint of the other's
//! certificate from the offer and the answer, which go through an authenticated
//! controller, and ends the session when it is shown another one: there is no
//! such man, with or without.

use std::{
    collections::VecDeque,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use rtc_dtls::{
    cipher_suite::CipherSuiteId,
    config::{ClientAuthType, ConfigBuilder, ExtendedMasterSecretType, HandshakeConfig},
    crypto::Certificate,
    crypto_provider::{SignatureScheme, default_provider},
    endpoint::{Endpoint, EndpointEvent},
    extension::extension_use_srtp::SrtpProtectionProfile,
};
use rtc_shared::{TransportProtocol, error::Error as LibraryError};
use rustls_pki_types::CertificateDer;
use str0m::crypto::{
    CryptoError, CryptoProvider,
    dtls::{
        DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion,
        ProtocolVersion,
    },
    from_feature_flags,
};

/// The library tells peers apart by their addresses. There is one, and where
/// it really is, str0m knows.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2);
/// Written into the greeting; nobody looks at it.
const NAME: &str = "selvage";
/// Timeout of a handshake that has nothing to retransmit.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
const SUITES: [CipherSuiteId; 3] = [
    CipherSuiteId::Tls_Ecdhe_Ecdsa_With_Aes_128_Gcm_Sha256,
    CipherSuiteId::Tls_Ecdhe_Ecdsa_With_ChaCha20_Poly1305_Sha256,
    CipherSuiteId::Tls_Ecdhe_Rsa_With_Aes_128_Gcm_Sha256,
];

/// str0m's cryptography with this handshake.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { dtls_provider: &Lenient, ..from_feature_flags() })
}

#[derive(Debug)]
struct Lenient;

impl DtlsProvider for Lenient {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        from_feature_flags().dtls_provider.generate_certificate()
    }

    fn new_dtls(
        &self,
        certificate: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        if version != DtlsVersion::Dtls12 {
            return Err(CryptoError::Other(format!("{version}: only 1.2 is spoken")));
        }
        let secret = ExtendedMasterSecretType::Request;
        Ok(Box::new(Handshake::new(certificate, now, mtu, secret)?))
    }
}

/// Outputs for str0m, one after the other.
enum Pending {
    Packet(BytesMut),
    Certificate(Vec<u8>),
    Connected,
    Data(BytesMut),
    Closed,
}

impl Pending {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Packet(bytes) | Self::Data(bytes) => bytes,
            Self::Certificate(bytes) => bytes,
            Self::Connected | Self::Closed => &[],
        }
    }
}

struct Handshake {
    /// Never contended: the library's ciphers may be moved between threads but
    /// not looked at by several, and str0m asks for both.
    endpoint: Mutex<Endpoint>,
    client: Arc<HandshakeConfig>,
    server: Arc<HandshakeConfig>,
    active: bool,
    begun: bool,
    connected: bool,
    closed: bool,
    now: Instant,
    pending: VecDeque<Pending>,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { active, connected, closed, .. } = self;
        write!(
            formatter,
            "Handshake {{ active: {active}, connected: {connected}, closed: {closed} }}"
        )
    }
}

fn unusable(error: impl fmt::Display) -> CryptoError {
    CryptoError::Other(error.to_string())
}

/// Ends the session. The reason is for the log; str0m has no field for it.
fn broken(error: &LibraryError) -> DtlsImplError {
    tracing::debug!(%error, "the handshake with a peer failed");
    DtlsImplError::ConnectionClosed
}

impl Handshake {
    fn new(
        certificate: &DtlsCert,
        now: Instant,
        mtu: Option<usize>,
        secret: ExtendedMasterSecretType,
    ) -> Result<Self, CryptoError> {
        let builder = configured(certificate, mtu, secret)?;
        let client = builder.clone().build(true, None).map_err(unusable)?;
        let server = builder.build(false, None).map_err(unusable)?;
        Ok(Self {
            endpoint: Mutex::new(Endpoint::new(LOCAL, TransportProtocol::UDP, None)),
            client: Arc::new(client),
            server: Arc::new(server),
            active: false,
            begun: false,
            connected: false,
            closed: false,
            now,
            pending: VecDeque::new(),
        })
    }

    fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes over what the library wants to send.
    fn collect(&mut self) {
        while let Some(message) = self.endpoint().poll_transmit() {
            self.pending.push_back(Pending::Packet(message.message));
        }
    }

    fn happened(&mut self, event: EndpointEvent) -> Result<(), DtlsImplError> {
        match event {
            EndpointEvent::HandshakeComplete => {
                let state = self.endpoint().get_connection_state(REMOTE);
                let shown = state.and_then(|state| state.peer_certificates.first().cloned());
                // Nobody to compare with what the offer said.
                let shown = shown.ok_or_else(|| broken(&LibraryError::ErrNoCertificates))?;
                self.connected = true;
                self.pending.extend([Pending::Certificate(shown), Pending::Connected]);
            }
            EndpointEvent::ApplicationData(bytes) => self.pending.push_back(Pending::Data(bytes)),
            EndpointEvent::PeerClosed => self.pending.push_back(Pending::Closed),
            _ => {}
        }
        Ok(())
    }

    /// Returns true if a packet that the library refuses ends the session.
    /// Anybody can send what is no record at all; what comes after the
    /// handshake is authenticated, or else it is not from the peer.
    fn is_fatal(&self, error: &LibraryError) -> bool {
        match error {
            LibraryError::ErrAlertFatalOrClose => true,
            LibraryError::ErrInvalidPacketLength => false,
            _ => !self.connected,
        }
    }
}

impl DtlsInstance for Handshake {
    fn set_active(&mut self, active: bool) {
        self.active = active;
        if !active {
            let server = Arc::clone(&self.server);
            self.endpoint().set_server_config(Some(server));
        }
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        // With an empty one str0m says that it is time to begin.
        if packet.is_empty() || self.closed {
            return Ok(());
        }
        let read = self.endpoint().read(Instant::now(), REMOTE, None, packet.into());
        self.collect();
        match read {
            Ok(events) => events.into_iter().try_for_each(|event| self.happened(event)),
            Err(error) if self.is_fatal(&error) => Err(broken(&error)),
            Err(error) => {
                tracing::trace!(%error, "packet dropped");
                Ok(())
            }
        }
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        let Some(next) = self.pending.front() else {
            let quiet = self.now + IDLE_TIMEOUT;
            return DtlsOutput::Timeout(self.endpoint().poll_timeout(&REMOTE).unwrap_or(quiet));
        };
        let needed = next.bytes().len();
        let Some(room) = buffer.get_mut(..needed) else {
            return DtlsOutput::BufferTooSmall { needed };
        };
        room.copy_from_slice(next.bytes());
        match self.pending.pop_front() {
            Some(Pending::Packet(_)) => DtlsOutput::Packet(room),
            Some(Pending::Certificate(_)) => DtlsOutput::PeerCert(room),
            Some(Pending::Data(_)) => DtlsOutput::ApplicationData(room),
            Some(Pending::Connected) => DtlsOutput::Connected,
            Some(Pending::Closed) | None => DtlsOutput::CloseNotify,
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.now = now;
        let due = self.endpoint().poll_timeout(&REMOTE).is_some_and(|when| when <= now);
        let done = if self.active && !self.begun {
            self.begun = true;
            let client = Arc::clone(&self.client);
            self.endpoint().connect(now, REMOTE, client, None)
        } else if due {
            self.endpoint().handle_timeout(REMOTE, now)
        } else {
            Ok(())
        };
        self.collect();
        done.map_err(|error| broken(&error))
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<(), DtlsImplError> {
        if !self.connected {
            return Err(DtlsImplError::HandshakePending);
        }
        let now = self.now;
        let written = self.endpoint().write(now, REMOTE, data);
        self.collect();
        written.map_err(|error| broken(&error))
    }

    fn is_active(&self) -> bool {
        self.active
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.connected.then_some(ProtocolVersion::DTLS1_2)
    }

    fn is_closing(&self) -> bool {
        self.closed && !self.pending.is_empty()
    }

    fn is_closed(&self) -> bool {
        self.closed && self.pending.is_empty()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.closed = true;
        let now = self.now;
        let closed = self.endpoint().close(now);
        self.collect();
        closed.map_err(|error| broken(&error))
    }
}

fn configured(
    certificate: &DtlsCert,
    mtu: Option<usize>,
    secret: ExtendedMasterSecretType,
) -> Result<ConfigBuilder, CryptoError> {
    let provider = default_provider().map_err(unusable)?;
    let key = provider
        .crypto()
        .import_signing_key(SignatureScheme::EcdsaP256Sha256, &certificate.private_key)
        .map_err(unusable)?;
    let chain = vec![CertificateDer::from(certificate.certificate.clone())];
    Ok(ConfigBuilder::default()
        .with_crypto_provider(provider)
        .with_certificates(vec![Certificate::from_signing_key(chain, key)])
        .with_cipher_suites(SUITES.to_vec())
        // There is no media; the original's library wants its keys all the same.
        .with_srtp_protection_profiles(vec![SrtpProtectionProfile::Srtp_Aes128_Cm_Hmac_Sha1_80])
        .with_extended_master_secret(secret)
        // Nobody signed these: str0m compares their fingerprints.
        .with_client_auth(ClientAuthType::RequireAnyClientCert)
        .with_insecure_skip_verify(true)
        .with_server_name(NAME.to_owned())
        .with_mtu(mtu.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Outputs of one end other than packets.
    #[derive(Debug, Default, PartialEq)]
    struct Heard {
        certificate: Vec<u8>,
        connected: bool,
        data: Vec<u8>,
        closed: bool,
    }

    struct End {
        dtls: Box<dyn DtlsInstance>,
        heard: Heard,
    }

    fn certificate() -> DtlsCert {
        Lenient.generate_certificate().unwrap()
    }

    fn begun(mut dtls: Box<dyn DtlsInstance>, active: bool) -> End {
        dtls.set_active(active);
        dtls.handle_timeout(Instant::now()).unwrap();
        if active {
            dtls.handle_packet(&[]).unwrap();
        }
        End { dtls, heard: Heard::default() }
    }

    fn lenient(own: &DtlsCert, active: bool, secret: ExtendedMasterSecretType) -> End {
        let handshake = Handshake::new(own, Instant::now(), Some(1200), secret).unwrap();
        begun(Box::new(handshake), active)
    }

    /// Returns an end as every str0m has it, which insists on the extension.
    fn strict(own: &DtlsCert, active: bool) -> End {
        let provider = from_feature_flags().dtls_provider;
        let dtls = provider.new_dtls(own, Instant::now(), DtlsVersion::Dtls12, Some(1200));
        begun(dtls.unwrap(), active)
    }

    impl End {
        /// The packets that it wants to send.
        fn drain(&mut self) -> Vec<Vec<u8>> {
            let (mut buffer, mut packets) = (vec![0; 2000], Vec::new());
            loop {
                match self.dtls.poll_output(&mut buffer) {
                    DtlsOutput::Packet(packet) => packets.push(packet.to_vec()),
                    DtlsOutput::PeerCert(der) => self.heard.certificate = der.to_vec(),
                    DtlsOutput::Connected => self.heard.connected = true,
                    DtlsOutput::ApplicationData(data) => self.heard.data.extend_from_slice(data),
                    DtlsOutput::CloseNotify => self.heard.closed = true,
                    DtlsOutput::Timeout(_) => return packets,
                    _ => {}
                }
            }
        }
    }

    /// Carries packets until neither has any.
    fn exchange(one: &mut End, other: &mut End) -> Result<(), DtlsImplError> {
        loop {
            let (there, back) = (one.drain(), other.drain());
            if there.is_empty() && back.is_empty() {
                return Ok(());
            }
            there.iter().try_for_each(|packet| other.dtls.handle_packet(packet))?;
            back.iter().try_for_each(|packet| one.dtls.handle_packet(packet))?;
        }
    }

    /// Shakes hands, talks both ways, and parts.
    fn converse(mut client: End, mut server: End, certificates: [&DtlsCert; 2]) {
        exchange(&mut client, &mut server).unwrap();
        let [clients, servers] = certificates.map(|own| own.certificate.clone());
        assert!(client.heard.connected && client.heard.certificate == servers);
        assert!(server.heard.connected && server.heard.certificate == clients);
        client.dtls.send_application_data(b"question").unwrap();
        server.dtls.send_application_data(b"answer").unwrap();
        exchange(&mut client, &mut server).unwrap();
        assert_eq!((&*client.heard.data, &*server.heard.data), (&b"answer"[..], &b"question"[..]));
        client.dtls.close().unwrap();
        exchange(&mut client, &mut server).unwrap();
        assert!(server.heard.closed && client.dtls.is_closed());
    }

    #[test]
    fn peers_without_the_extended_secret_are_spoken_with_as_client_and_as_server() {
        use ExtendedMasterSecretType::{Disable, Request};
        let (one, other) = (certificate(), certificate());
        for (clients, servers) in [(Request, Disable), (Disable, Request)] {
            let client = lenient(&one, true, clients);
            converse(client, lenient(&other, false, servers), [&one, &other]);
        }
    }

    #[test]
    fn whoever_has_the_extended_secret_gets_it() {
        let (one, other) = (certificate(), certificate());
        let ask = ExtendedMasterSecretType::Request;
        converse(lenient(&one, true, ask), strict(&other, false), [&one, &other]);
        converse(strict(&one, true), lenient(&other, false, ask), [&one, &other]);
        // They do insist on it, and so what was seen above was that.
        let (mut client, mut server) =
            (lenient(&one, true, ExtendedMasterSecretType::Disable), strict(&other, false));
        assert!(exchange(&mut client, &mut server).is_err());
    }

    #[test]
    fn packets_of_unknown_peers_are_dropped() {
        let (one, other) = (certificate(), certificate());
        let ask = ExtendedMasterSecretType::Request;
        let mut client = lenient(&one, true, ask);
        let mut server = lenient(&other, false, ask);
        for junk in [&b"\x16"[..], &[0x16; 40], &[0xff; 100]] {
            client.dtls.handle_packet(junk).unwrap();
            server.dtls.handle_packet(junk).unwrap();
        }
        exchange(&mut client, &mut server).unwrap();
        let alert = [21, 254, 253, 0, 0, 0, 0, 0, 0, 0, 9, 0, 2, 2, 40];
        for junk in [&alert[..], &b"\x17"[..], &[0x17; 40], &[0xff; 100]] {
            client.dtls.handle_packet(junk).unwrap();
            server.dtls.handle_packet(junk).unwrap();
        }
        assert!(!client.heard.closed && !server.heard.closed);
        client.dtls.send_application_data(b"still here").unwrap();
        exchange(&mut client, &mut server).unwrap();
        assert_eq!(server.heard.data, b"still here");
    }

    #[test]
    fn lost_packets_are_sent_again() {
        let (one, other) = (certificate(), certificate());
        let ask = ExtendedMasterSecretType::Request;
        let (mut client, mut server) = (lenient(&one, true, ask), lenient(&other, false, ask));
        let early = client.dtls.send_application_data(b"early");
        assert_eq!(early, Err(DtlsImplError::HandshakePending));
        assert!(!client.drain().is_empty(), "and they are lost");
        let soon = Instant::now() + Duration::from_secs(2);
        client.dtls.handle_timeout(soon).unwrap();
        exchange(&mut client, &mut server).unwrap();
        assert!(client.heard.connected && server.heard.connected);
    }
}
