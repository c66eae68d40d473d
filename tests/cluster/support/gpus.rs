//! Which scene has which simulated GPU. Tests run together: a leak on a GPU that another test counts on would look like a
//! fault of the product.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static TAKEN: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());

/// Takes a GPU for a namespace. It stays its own until the process ends, so that two scenes of one GPU are found even on
/// a day on which they happen not to meet.
///
/// # Panics
/// When another namespace has it.
pub fn take(gpu: u32, namespace: &str) {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let owner = taken.entry(gpu).or_insert_with(|| namespace.to_owned()).clone();
    drop(taken);
    assert!(owner == namespace, "GPU {gpu} is {owner}'s, and {namespace} wants it too: give each scene its own");
}
