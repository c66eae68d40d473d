//! Authority and certificates as values: what to make, what to renew, and when. Pure but for the randomness of keys.
//!
//! A rotation of the authority never cuts anybody off: the new one is first only *published* beside the old, and signs
//! nothing until every agent's mounted Secret must have it; then it signs, and the old one stays trusted until the last
//! certificate it signed is surely replaced.

use std::collections::BTreeMap;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::api::names::{AGENT_TLS_NAME, CONTROLLER_TLS_NAME, TLS_AGENT_CERT, TLS_AGENT_KEY, TLS_CA};

/// Seconds since 1970 on the wall clock.
pub type Seconds = u64;

/// The authority lives five years.
const CA_LIFE: Seconds = 5 * 365 * 86_400;
/// Certificates live ninety days.
const LEAF_LIFE: Seconds = 90 * 86_400;
/// Validity starts this much before the present, for nodes whose clock is behind.
const BACKDATED: Seconds = 3600;
/// The kubelet brings a changed Secret into pods within two minutes or so; after this it has for certain.
const OVERLAP: Seconds = 3600;

/// Keys in the controller's own Secret.
const CA_KEY: &str = "ca.key";
const NEXT_CERT: &str = "next-ca.crt";
const NEXT_KEY: &str = "next-ca.key";
const PREVIOUS_CERT: &str = "previous-ca.crt";
const CONTROLLER_CERT: &str = "controller.crt";
const CONTROLLER_KEY: &str = "controller.key";

/// Why certificates cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// rcgen refuses.
    #[error("making a certificate failed")]
    Make(#[from] rcgen::Error),
    /// A key is missing in the Secret.
    #[error("the Secret lacks {0}")]
    Missing(&'static str),
    /// A certificate cannot be read.
    #[error("a certificate cannot be read")]
    Unreadable,
}

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub cert: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair(private)")
    }
}

/// Everything there is: the authority that signs, its successor or predecessor during a rotation, and both certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The authority that signs.
    pub ca: Pair,
    /// Published already, signs later.
    pub next: Option<Pair>,
    /// Signs no more, still trusted.
    pub previous: Option<String>,
    /// The controllers' certificate.
    pub controller: Pair,
    /// The agents' certificate.
    pub agent: Pair,
}

/// What a renewal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new authority is published beside the old.
    Announced,
    /// The new authority signs from now on.
    Promoted,
    /// Certificates signed anew by the same authority.
    Leaves,
    /// The old authority is trusted no more.
    Retired,
    /// Everything was made anew: the authority had run out.
    Everything,
}

impl Bundle {
    /// A new authority and certificates.
    pub fn new(now: Seconds) -> Result<Self, Error> {
        let ca = authority(now)?;
        let (controller, agent) = leaves(&ca, now)?;
        Ok(Self { ca, next: None, previous: None, controller, agent })
    }

    /// What is due at `now`, one step at a time; `None` when nothing is. Everything is renewed at two thirds of its life.
    pub fn renewed(&self, now: Seconds) -> Result<Option<(Self, Step)>, Error> {
        let ca = Validity::of(&self.ca.cert)?;
        let leaves_from = Validity::of(&self.controller.cert)?.from.min(Validity::of(&self.agent.cert)?.from);
        let leaves_due =
            Validity::of(&self.controller.cert)?.is_due(now) || Validity::of(&self.agent.cert)?.is_due(now);
        if now >= ca.until {
            return Ok(Some((Self::new(now)?, Step::Everything)));
        }
        if let Some(next) = &self.next {
            if now >= Validity::of(&next.cert)?.from + BACKDATED + OVERLAP {
                let (controller, agent) = leaves(next, now)?;
                let previous = Some(self.ca.cert.clone());
                return Ok(Some((Self { ca: next.clone(), next: None, previous, controller, agent }, Step::Promoted)));
            }
        } else if ca.is_due(now) {
            return Ok(Some((Self { next: Some(authority(now)?), ..self.clone() }, Step::Announced)));
        }
        if leaves_due {
            let (controller, agent) = leaves(&self.ca, now)?;
            return Ok(Some((Self { controller, agent, ..self.clone() }, Step::Leaves)));
        }
        if self.previous.is_some() && now >= leaves_from + BACKDATED + OVERLAP {
            return Ok(Some((Self { previous: None, ..self.clone() }, Step::Retired)));
        }
        Ok(None)
    }

    /// Every authority to believe, PEM.
    pub fn trusted(&self) -> String {
        let others = self.next.iter().map(|next| &next.cert).chain(&self.previous);
        others.fold(self.ca.cert.clone(), |all, next| all + next)
    }

    /// When the first certificate runs out.
    pub fn expires(&self) -> Result<Seconds, Error> {
        let certificates = [&self.ca.cert, &self.controller.cert, &self.agent.cert];
        let ends: Result<Vec<_>, _> = certificates.into_iter().map(|cert| Validity::of(cert)).collect();
        Ok(ends?.into_iter().map(|validity| validity.until).min().unwrap_or_default())
    }

    /// The agents' Secret.
    pub fn to_agents(&self) -> BTreeMap<String, String> {
        let Pair { cert, key } = self.agent.clone();
        [(TLS_CA, self.trusted()), (TLS_AGENT_CERT, cert), (TLS_AGENT_KEY, key)]
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text))
            .collect()
    }

    /// The controller's own Secret.
    pub fn to_secret(&self) -> BTreeMap<String, String> {
        let Self { ca, next, previous, controller, agent } = self.clone();
        let mut all = vec![
            (TLS_CA, ca.cert),
            (CA_KEY, ca.key),
            (CONTROLLER_CERT, controller.cert),
            (CONTROLLER_KEY, controller.key),
            (TLS_AGENT_CERT, agent.cert),
            (TLS_AGENT_KEY, agent.key),
        ];
        if let Some(next) = next {
            all.extend([(NEXT_CERT, next.cert), (NEXT_KEY, next.key)]);
        }
        all.extend(previous.map(|cert| (PREVIOUS_CERT, cert)));
        all.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }

    /// Reads [`Bundle::to_secret`] back.
    pub fn from_secret(data: &BTreeMap<String, String>) -> Result<Self, Error> {
        let pair = |cert: &'static str, key: &'static str| {
            Ok::<_, Error>(Pair {
                cert: data.get(cert).cloned().ok_or(Error::Missing(cert))?,
                key: data.get(key).cloned().ok_or(Error::Missing(key))?,
            })
        };
        Ok(Self {
            ca: pair(TLS_CA, CA_KEY)?,
            next: if data.contains_key(NEXT_CERT) { Some(pair(NEXT_CERT, NEXT_KEY)?) } else { None },
            previous: data.get(PREVIOUS_CERT).cloned(),
            controller: pair(CONTROLLER_CERT, CONTROLLER_KEY)?,
            agent: pair(TLS_AGENT_CERT, TLS_AGENT_KEY)?,
        })
    }
}

fn authority(now: Seconds) -> Result<Pair, Error> {
    let key = KeyPair::generate()?;
    let mut params = params("gpumem authority", vec![], now, CA_LIFE)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(Pair { cert: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// The controllers' and the agents' certificate. The agents' serves and nothing else: it opens no other agent and no
/// controller.
fn leaves(ca: &Pair, now: Seconds) -> Result<(Pair, Pair), Error> {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let issuer = Issuer::from_ca_cert_pem(&ca.cert, KeyPair::from_pem(&ca.key)?)?;
    let leaf = |name: &str, usages: Vec<ExtendedKeyUsagePurpose>| {
        let key = KeyPair::generate()?;
        let mut params = params(name, vec![name.to_owned()], now, LEAF_LIFE)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        Ok::<_, Error>(Pair { cert: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
    };
    Ok((leaf(CONTROLLER_TLS_NAME, vec![ClientAuth, ServerAuth])?, leaf(AGENT_TLS_NAME, vec![ServerAuth])?))
}

fn params(name: &str, names: Vec<String>, now: Seconds, life: Seconds) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(BACKDATED));
    params.not_after = epoch + Duration::from_secs(now.saturating_add(life));
    Ok(params)
}

/// From when until when a certificate holds.
struct Validity {
    from: Seconds,
    until: Seconds,
}

impl Validity {
    fn of(pem: &str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| Error::Unreadable)?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).map_err(|_| Error::Unreadable)?;
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        let validity = certificate.validity();
        Ok(Self { from: seconds(validity.not_before), until: seconds(validity.not_after) })
    }

    fn is_due(&self, now: Seconds) -> bool {
        now >= self.from + self.until.saturating_sub(self.from) / 3 * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Seconds = 1_800_000_000;

    #[test]
    fn a_bundle_reads_back_from_its_secret_as_written() {
        let bundle = Bundle::new(NOW).unwrap();
        assert_eq!(Bundle::from_secret(&bundle.to_secret()).unwrap(), bundle);
        let announced = bundle.renewed(NOW + CA_LIFE * 3 / 4).unwrap().unwrap().0;
        assert_eq!(Bundle::from_secret(&announced.to_secret()).unwrap(), announced);
    }

    #[test]
    fn nothing_is_renewed_before_two_thirds_of_its_life() {
        let bundle = Bundle::new(NOW).unwrap();
        assert_eq!(bundle.renewed(NOW + LEAF_LIFE / 2).unwrap(), None);
        let (renewed, step) = bundle.renewed(NOW + LEAF_LIFE * 7 / 10).unwrap().unwrap();
        assert_eq!((step, &renewed.ca), (Step::Leaves, &bundle.ca));
        assert_ne!(renewed.agent, bundle.agent);
        assert!(renewed.expires().unwrap() > bundle.expires().unwrap());
    }

    #[test]
    fn an_authority_is_announced_before_it_signs_and_the_old_one_is_trusted_until_its_last_certificate_is_gone() {
        let mut bundle = Bundle::new(NOW).unwrap();
        let mut now = NOW + CA_LIFE * 7 / 10;
        let mut steps = vec![];
        let old = bundle.ca.cert.clone();
        for _ in 0..12 {
            if let Some((renewed, step)) = bundle.renewed(now).unwrap() {
                bundle = renewed;
                steps.push(step);
            }
            let trusts_old = bundle.trusted().contains(&old);
            assert_eq!(trusts_old, !steps.contains(&Step::Retired));
            now += OVERLAP / 4;
        }
        assert_eq!(steps, [Step::Announced, Step::Leaves, Step::Promoted, Step::Retired]);
        assert_eq!(bundle.renewed(now).unwrap(), None);
    }

    #[test]
    fn an_authority_that_ran_out_is_made_anew() {
        let bundle = Bundle::new(NOW).unwrap();
        assert_eq!(bundle.renewed(NOW + CA_LIFE).unwrap().unwrap().1, Step::Everything);
    }

    #[test]
    fn the_agents_secret_holds_no_key_but_theirs() {
        let bundle = Bundle::new(NOW).unwrap();
        let agents: String = bundle.to_agents().into_values().collect();
        assert!(!agents.contains(&bundle.ca.key) && !agents.contains(&bundle.controller.key));
    }
}
