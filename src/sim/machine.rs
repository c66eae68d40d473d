//! The driver's memory: who holds how much on which device, and what is made to fail.
//!
//! Flows in: opens, allocations, frees and faults, each with the client they come from. Flows out: whether it fits, and
//! the state that NVML is answered from. Pure: time is an argument, sockets and processes are elsewhere.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::protocol::{
    Accounting, Answer, CheckpointState, DRIVER_VERSION, DeviceState, Fault, InstanceState, Kind, Memory, OutOfMemory,
    Process, State,
};
use crate::spec::DeviceSpec;

mod checkpoint;
mod limits;

pub use checkpoint::NOT_READY;

/// One connection.
pub type ClientId = u64;

/// What contexts and idle devices cost.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Bytes of a context on a whole device.
    pub context: u64,
    /// Bytes of a context on a MIG instance.
    pub context_mig: u64,
    /// Bytes that belong to nobody on a device with a process.
    pub unattributed: u64,
}

/// All devices of a driver and their users.
#[derive(Debug)]
pub struct Machine {
    boot: u64,
    costs: Costs,
    devices: Vec<DeviceSpec>,
    clients: BTreeMap<ClientId, Client>,
    faults: Vec<ActiveFault>,
    accounting: Accounting,
    limits: limits::Limits,
    /// Processes that do not run; all others do.
    suspended: BTreeMap<u32, CheckpointState>,
}

/// The context that a connection asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// `auto`, an index, `index.slot`, or a UUID.
    pub device: &'a str,
    /// What people see in listings.
    pub name: &'a str,
    /// In which of NVML's process lists it appears.
    pub kind: Kind,
    /// Bytes it costs; the machine's default where absent.
    pub context: Option<u64>,
}

#[derive(Debug)]
struct Client {
    pid: u32,
    name: String,
    kind: Kind,
    place: Place,
    context: u64,
    held: u64,
    /// Text of its `/proc/<pid>/cgroup`, as it was last looked at.
    cgroup: String,
}

/// A whole device, or one MIG instance of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    device: usize,
    slot: Option<usize>,
}

#[derive(Debug, PartialEq)]
struct ActiveFault {
    device: Option<usize>,
    fault: Fault,
    until: Option<Instant>,
}

// === impl Costs ===

impl Default for Costs {
    /// As measured on an H200, rounded.
    fn default() -> Self {
        Self { context: 500 << 20, context_mig: 146 << 20, unattributed: 15 << 20 }
    }
}

// === impl Machine ===

impl Machine {
    /// A machine with these devices and no processes. `boot` tells one start of the driver from another.
    pub fn new(devices: Vec<DeviceSpec>, costs: Costs, boot: u64) -> Self {
        Self {
            boot,
            costs,
            devices,
            clients: BTreeMap::new(),
            faults: Vec::new(),
            accounting: Accounting::default(),
            limits: limits::Limits::default(),
            suspended: BTreeMap::new(),
        }
    }

    /// The same with another accounting.
    #[must_use]
    pub fn accounting(mut self, accounting: Accounting) -> Self {
        self.accounting = accounting;
        self
    }

    /// Gives a connection its one context.
    pub fn open(&mut self, client: ClientId, pid: u32, wanted: Wanted<'_>, now: Instant) -> Answer {
        let Wanted { device, name, kind, context } = wanted;
        if self.clients.contains_key(&client) {
            return Answer::Refused { why: "this connection has its context; open another connection".to_owned() };
        }
        let place = match self.choose(device) {
            Ok(place) => place,
            Err(why) => return Answer::Refused { why },
        };
        if self.is_lost(place.device, now) {
            return Answer::DeviceLost;
        }
        let default = if place.slot.is_some() { self.costs.context_mig } else { self.costs.context };
        let context = context.unwrap_or(default);
        // The first process also brings what belongs to nobody.
        let memory = self.memory(place);
        let extra = if memory.used == 0 { self.unattributed(place) } else { 0 };
        if context.saturating_add(extra) > memory.free {
            return Answer::OutOfMemory(self.out_of_memory(place, pid, 0, 0, context));
        }
        let name = name.to_owned();
        self.clients.insert(client, Client { pid, name, kind, place, context, held: 0, cgroup: String::new() });
        Answer::Opened {
            device: place.device as u32,
            slot: place.slot.map(|slot| slot as u32),
            total: memory.total,
            context,
            pid,
        }
    }

    /// Lets a connection hold more, if it fits.
    pub fn alloc(&mut self, client: ClientId, bytes: u64, now: Instant) -> Answer {
        let Some(&Client { pid, place, context, held, .. }) = self.clients.get(&client) else {
            return Answer::Refused { why: "open a context first".to_owned() };
        };
        if self.is_lost(place.device, now) {
            return Answer::DeviceLost;
        }
        if bytes > self.memory(place).free {
            return Answer::OutOfMemory(self.out_of_memory(place, pid, context, held, bytes));
        }
        if let Some((hard, used)) = self.tightest(client).filter(|(hard, used)| used.saturating_add(bytes) > *hard) {
            // Within a limited cgroup the limit is all there is of the device.
            let refusal = self.out_of_memory(place, pid, context, held, bytes);
            return Answer::OutOfMemory(OutOfMemory { total: hard, free: hard.saturating_sub(used), ..refusal });
        }
        self.hold(client, held + bytes)
    }

    /// Lets a connection hold less.
    pub fn free(&mut self, client: ClientId, bytes: u64) -> Answer {
        match self.clients.get(&client) {
            Some(&Client { held, .. }) => self.hold(client, held.saturating_sub(bytes)),
            None => Answer::Refused { why: "open a context first".to_owned() },
        }
    }

    /// Forgets a connection; its memory is free at once.
    pub fn close(&mut self, client: ClientId) {
        self.clients.remove(&client);
        let Self { clients, suspended, .. } = self;
        suspended.retain(|pid, _| clients.values().any(|client| client.pid == *pid));
    }

    /// Makes something fail, until then if given.
    pub fn set_fault(&mut self, device: Option<u32>, fault: Fault, until: Option<Instant>) -> Answer {
        let device = device.map(|index| index as usize);
        if device.is_some_and(|index| index >= self.devices.len()) {
            return Answer::Refused { why: format!("there are only {} devices", self.devices.len()) };
        }
        self.faults.retain(|active| (active.device, active.fault) != (device, fault));
        self.faults.push(ActiveFault { device, fault, until });
        Answer::Done
    }

    /// Ends faults: of one device or everywhere, one kind or all.
    pub fn clear_fault(&mut self, device: Option<u32>, fault: Option<Fault>) -> Answer {
        let device = device.map(|index| index as usize);
        self.faults.retain(|active| {
            device.is_some_and(|index| active.device != Some(index)) || fault.is_some_and(|fault| active.fault != fault)
        });
        Answer::Done
    }

    /// Everything, as asked by `caller_pid`.
    pub fn state(&mut self, caller_pid: u32, now: Instant) -> State {
        self.faults.retain(|active| active.until.is_none_or(|until| now < until));
        State {
            boot: self.boot,
            driver_version: DRIVER_VERSION.to_owned(),
            caller_pid,
            faults: self.faults_of(None),
            devices: (0..self.devices.len()).map(|index| self.device_state(index)).collect(),
        }
    }

    fn device_state(&self, index: usize) -> DeviceState {
        let spec = &self.devices[index];
        let instance = |(slot, instance): (usize, &Option<crate::spec::InstanceSpec>)| {
            instance.as_ref().map(|instance| InstanceState {
                profile: instance.profile.clone(),
                uuid: instance.uuid.clone(),
                slices: instance.slices,
                memory: self.memory(Place { device: index, slot: Some(slot) }),
            })
        };
        DeviceState {
            name: spec.name.clone(),
            uuid: spec.uuid.clone(),
            memory: self.memory(Place { device: index, slot: None }),
            slots: spec.slots.iter().enumerate().map(instance).collect(),
            processes: self.processes(index),
            faults: self.faults_of(Some(index)),
        }
    }

    /// The processes of a device; connections of one process to one place are one entry.
    fn processes(&self, device: usize) -> Vec<Process> {
        let mut processes: BTreeMap<(u32, Option<usize>, Kind), Process> = BTreeMap::new();
        let here = |client: &&Client| client.place.device == device && self.is_on_device(client);
        for client in self.clients.values().filter(here) {
            let Client { pid, ref name, kind, place, context, held, cgroup: _ } = *client;
            let entry = processes.entry((pid, place.slot, kind)).or_insert_with(|| Process {
                pid,
                name: name.clone(),
                kind,
                slot: place.slot.map(|slot| slot as u32),
                bytes: 0,
            });
            entry.bytes += context + held;
        }
        processes.into_values().collect()
    }

    fn memory(&self, place: Place) -> Memory {
        let spec = &self.devices[place.device];
        let (total, reserved) = match place.slot.and_then(|slot| spec.slots[slot].as_ref()) {
            Some(instance) => (instance.total, 0),
            None => (spec.total, spec.reserved),
        };
        let inside = |client: &&Client| {
            client.place.device == place.device
                && (place.slot.is_none() || client.place.slot == place.slot)
                && self.is_on_device(client)
        };
        let mut used: u64 = self.clients.values().filter(inside).map(|client| client.context + client.held).sum();
        if self.clients.values().any(|client| inside(&client)) {
            used += self.unattributed(place);
        }
        Memory { total, reserved, used, free: total.saturating_sub(reserved).saturating_sub(used) }
    }

    /// Instances have none, so that parent and instances add up.
    fn unattributed(&self, place: Place) -> u64 {
        let sliced = !self.devices[place.device].slots.is_empty();
        if sliced { 0 } else { self.costs.unattributed }
    }

    fn out_of_memory(&self, place: Place, pid: u32, context: u64, held: u64, requested: u64) -> OutOfMemory {
        let Memory { total, free, .. } = self.memory(place);
        let here = |process: &Process| process.slot.map(|slot| slot as usize) == place.slot;
        let processes = self.processes(place.device).into_iter().filter(here).map(|p| (p.pid, p.bytes)).collect();
        OutOfMemory { device: place.device as u32, requested, total, free, pid, context, held, processes }
    }

    fn hold(&mut self, client: ClientId, bytes: u64) -> Answer {
        if let Some(client) = self.clients.get_mut(&client) {
            client.held = bytes;
        }
        Answer::Held { bytes }
    }

    /// `auto` (most free memory), an index, `index.slot`, or a UUID.
    fn choose(&self, device: &str) -> Result<Place, String> {
        let places: Vec<(Place, &str)> = self.places();
        let wanted = |(place, uuid): &&(Place, &str)| {
            let address = match place.slot {
                Some(slot) => format!("{}.{slot}", place.device),
                None => place.device.to_string(),
            };
            address == device || uuid.eq_ignore_ascii_case(device)
        };
        if device == "auto" {
            // The first of equals, so that an idle machine fills from device 0.
            let most_free = places.iter().rev().max_by_key(|(place, _)| self.memory(*place).free);
            return most_free.map(|(place, _)| *place).ok_or_else(|| "no MIG instance exists".to_owned());
        }
        if let Some((place, _)) = places.iter().find(wanted) {
            return Ok(*place);
        }
        let sliced = device.parse().ok().and_then(|index: usize| self.devices.get(index)).is_some();
        Err(if sliced {
            format!("device {device} is sliced by MIG: name an instance, such as {device}.0")
        } else {
            format!("there is no device `{device}`; name an index, index.slot, a UUID or `auto`")
        })
    }

    /// Where a context can be: devices without MIG, and instances.
    fn places(&self) -> Vec<(Place, &str)> {
        let mut places = Vec::new();
        for (device, spec) in self.devices.iter().enumerate() {
            if spec.slots.is_empty() {
                places.push((Place { device, slot: None }, spec.uuid.as_str()));
            }
            for (slot, instance) in spec.slots.iter().enumerate() {
                if let Some(instance) = instance {
                    places.push((Place { device, slot: Some(slot) }, instance.uuid.as_str()));
                }
            }
        }
        places
    }

    fn is_lost(&self, device: usize, now: Instant) -> bool {
        self.has(Fault::Lost, device, now)
    }

    fn has(&self, fault: Fault, device: usize, now: Instant) -> bool {
        self.faults.iter().any(|active| {
            active.fault == fault
                && active.device.is_none_or(|index| index == device)
                && active.until.is_none_or(|until| now < until)
        })
    }

    fn faults_of(&self, device: Option<usize>) -> Vec<Fault> {
        self.faults.iter().filter(|active| active.device == device).map(|active| active.fault).collect()
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
