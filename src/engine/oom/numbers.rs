//! The amounts in an out-of-memory message, found by the words around them.
//!
//! One table serves all frameworks: a wording that moves from one version or one fork to another is still read.

use super::size;
use crate::quantity::Bytes;

/// The amounts that a message named; `None` where it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The allocation that failed, or what a server wanted at start.
    pub requested: Option<Bytes>,
    /// All memory of the device, or of the pool the framework took from it.
    pub capacity: Option<Bytes>,
    /// What the device had left. It can exceed `requested`: in pieces, or behind a limit.
    pub free: Option<Bytes>,
    /// In tensors of this process.
    pub allocated: Option<Bytes>,
    /// Held by the allocator of this process, `allocated` included, whichever way the message counts.
    pub reserved: Option<Bytes>,
    /// The limit this process was started with.
    pub allowed: Option<Bytes>,
}

impl Numbers {
    /// Held by the allocator without being in use.
    pub fn idle(&self) -> Option<Bytes> {
        Some(self.reserved? - self.allocated?)
    }

    /// On the device but not with this process's allocator: other processes, and contexts.
    pub fn elsewhere(&self) -> Option<Bytes> {
        Some(self.capacity? - self.free? - self.reserved.or(self.allocated)?)
    }

    /// Reads a message in lower case.
    pub(super) fn read(message: &str) -> Self {
        let allocated = first(message, ALLOCATED);
        let unallocated = first(message, UNALLOCATED);
        let mut numbers = Self {
            requested: first(message, REQUESTED),
            capacity: first(message, CAPACITY),
            free: first(message, FREE),
            allocated,
            reserved: first(message, RESERVED).or_else(|| Some(allocated? + unallocated?)),
            allowed: first(message, ALLOWED).or_else(|| fraction_limit(message)),
        };
        numbers.read_fraction_check(message);
        numbers
    }

    /// `(3.2/15.9 GiB) ... less than desired GPU memory utilization (0.9, 14.3 GiB)`: one unit for two numbers.
    fn read_fraction_check(&mut self, message: &str) {
        let Some((device, desired)) = message.split_once("less than desired gpu memory utilization") else { return };
        self.requested = desired.split_once(',').and_then(|(_, size)| size::at_start(size)).or(self.requested);
        // The last bracket before the words: a device name in brackets may come first.
        let Some((free, capacity)) = device.rsplit_once('(').and_then(|(_, pair)| pair.split_once('/')) else { return };
        self.capacity = size::at_start(capacity);
        let unit: String =
            capacity.chars().skip_while(|c| !c.is_ascii_alphabetic()).take_while(char::is_ascii_alphabetic).collect();
        self.free = size::at_start(&format!("{} {unit}", free.trim()));
    }
}

/// The limit of the asynchronous allocator stands alone on the line below its name, behind
/// whatever the logger puts there.
fn fraction_limit(message: &str) -> Option<Bytes> {
    let (_, below) = message.split_once("user-supplied memory fraction)")?;
    size::at_end(below.trim_start().lines().next()?)
}

enum Beside {
    Before(&'static str),
    After(&'static str),
}
use Beside::{After, Before};

const REQUESTED: &[Beside] = &[
    After("tried to allocate"),
    After("trying to allocate"),
    After("failed to allocate request for"),
    After("requested buffer of size"),
    After("requested bytes of"),
    After("requested size was"),
    After("cannot allocate"),
    After("out of memory to allocate"),
    After("out of memory allocating"),
    After("failed to cuda malloc"),
    After("failed to cuda calloc async"),
    After("failed to cuda calloc"),
    After("attempting to allocate"),
    After("attempting to reserve"),
    After("buffer of size"),
    After("failed to allocate"),
    After("failed to alloc"),
    After("allocating"),
    After("requested memory"),
    After("requested"),
    Before("kv cache is needed"),
];

const CAPACITY: &[Beside] = &[
    Before("total capacity"),
    Before("total capacty"),
    After("total capacity of"),
    After("total capacty of"),
    After("total capacity:"),
    After("device limit"),
    After("limit:"),
];

const FREE: &[Beside] = &[
    Before("is free"),
    Before("are free"),
    Before("free;"),
    Before("free."),
    Before("free)"),
    After("of which"),
    After("- free memory"),
    After("free (according to cuda)"),
    After("free (according to hip)"),
    After("available memory is only"),
    After("available memory of"),
    After("available kv cache memory"),
];

const ALLOCATED: &[Beside] = &[
    Before("already allocated"),
    After("of the allocated memory"),
    Before("is allocated by"),
    After("currently allocated"),
    Before("memory has been allocated"),
    After("allocated so far"),
    After("inuse:"),
    After("mps allocated"),
    After("bytes (total"),
];

const RESERVED: &[Beside] = &[Before("reserved in total")];

/// Early messages call it cached, but print the difference as well.
const UNALLOCATED: &[Beside] = &[Before("is reserved by"), Before("reserved but unallocated"), Before("cached)")];

const ALLOWED: &[Beside] =
    &[Before("allowed;"), Before("allowed."), After("limit set to"), After("is limited to"), After("max allowed")];

fn first(message: &str, places: &[Beside]) -> Option<Bytes> {
    places.iter().find_map(|place| match place {
        Before(phrase) => size::at_end(&message[..message.find(phrase)?]),
        After(phrase) => {
            let at = message.find(phrase)?;
            // `InUse:` is not the end of `MaxInUse:`.
            let starts_a_word = !message[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
            starts_a_word.then(|| size::at_start(&message[at + phrase.len()..]))?
        }
    })
}
