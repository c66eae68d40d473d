//! An authority, an agent's and a controller's certificate, as the controller makes them.

use std::path::Path;

use gpumem::api::names::{AGENT_TLS_NAME, CONTROLLER_TLS_NAME, TLS_AGENT_CERT, TLS_AGENT_KEY, TLS_CA};
use gpumem::tls::Material;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn signs(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Material {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Material { ca: self.pem.clone().into_bytes(), cert: cert.into_bytes(), key: key.serialize_pem().into_bytes() }
    }

    pub fn controller(&self) -> Material {
        self.signs(CONTROLLER_TLS_NAME, ExtendedKeyUsagePurpose::ClientAuth)
    }

    pub fn agent(&self) -> Material {
        self.signs(AGENT_TLS_NAME, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Writes an agent's material where `--tls-dir` finds it.
    pub fn install(&self, directory: &Path) {
        let Material { ca, cert, key } = self.agent();
        std::fs::create_dir_all(directory).unwrap();
        for (name, text) in [(TLS_CA, ca), (TLS_AGENT_CERT, cert), (TLS_AGENT_KEY, key)] {
            std::fs::write(directory.join(name), text).unwrap();
        }
    }
}
