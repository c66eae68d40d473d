//! Mutual TLS between controller and agents, built from PEM text.
//!
//! One authority, made by the controller, signs everything. The agents' certificate is good for serving as
//! [`AGENT_TLS_NAME`](crate::api::names::AGENT_TLS_NAME) only; the controller's is good for calling agents, and for serving
//! its peer as [`CONTROLLER_TLS_NAME`](crate::api::names::CONTROLLER_TLS_NAME). The extended key usage in the certificates
//! holds that, and rustls checks it: an agent's certificate opens no other agent.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

/// Why PEM text gives no TLS settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not PEM of the kind expected.
    #[error("the {what} is not readable PEM")]
    Pem {
        /// Which part.
        what: &'static str,
        /// What the parser says.
        source: rustls::pki_types::pem::Error,
    },
    /// No certificate in the text.
    #[error("the {what} holds no certificate")]
    Empty {
        /// Which part.
        what: &'static str,
    },
    /// rustls refuses the material.
    #[error("rustls refuses the certificates")]
    Refused(#[from] rustls::Error),
    /// The client verifier cannot be built.
    #[error("no client can be verified with this authority")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// One side's certificate chain and key, and the authority it believes; all PEM.
#[derive(Clone)]
pub struct Material {
    /// Certificate(s) of the authority.
    pub ca: Vec<u8>,
    /// Own certificate chain.
    pub cert: Vec<u8>,
    /// Own private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Material(private)")
    }
}

/// Settings of a server that talks only to clients with a client certificate of the authority.
pub fn server(material: &Material) -> Result<Arc<rustls::ServerConfig>, Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(material)?), provider()).build()?;
    let settings = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain(material)?, key(material)?)?;
    Ok(Arc::new(settings))
}

/// Settings of a client that shows its certificate and believes only servers of the authority.
pub fn client(material: &Material) -> Result<Arc<rustls::ClientConfig>, Error> {
    let settings = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(material)?)
        .with_client_auth_cert(chain(material)?, key(material)?)?;
    Ok(Arc::new(settings))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|source| Error::Pem { what, source })?;
    if found.is_empty() { Err(Error::Empty { what }) } else { Ok(found) }
}

fn chain(material: &Material) -> Result<Vec<CertificateDer<'static>>, Error> {
    certificates(&material.cert, "certificate")
}

fn key(material: &Material) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(&material.key).map_err(|source| Error::Pem { what: "private key", source })
}

fn roots(material: &Material) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&material.ca, "authority")? {
        roots.add(certificate)?;
    }
    Ok(roots)
}
