//! The library's own state: whether it is initialised, and its connection to the driver.
//!
//! A call that hangs keeps no lock, so other threads go on. A driver that restarts under a session is lost to it until
//! the reader shuts down and initialises again, as after a reload of the real kernel module.

use std::ffi::c_uint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::abi::{Code, Handle, Return, SUCCESS};
use super::location::socket;
use crate::client::Client;
use crate::protocol::{Answer, DeviceState, Fault, InstanceState, Request, State};

/// Time between two looks at whether a hung device is released.
const HUNG_POLL: Duration = Duration::from_millis(20);
/// Marks a handle as ours.
const MAGIC: usize = 0x5d << 24;

struct Session {
    users: u32,
    generation: u8,
    boot: u64,
    client: Option<Client>,
}

static SESSION: Mutex<Session> = Mutex::new(Session { users: 0, generation: 0, boot: 0, client: None });

/// A device or MIG instance as a handle names it, with the state it was looked up in.
pub struct Target {
    pub state: Arc<State>,
    pub index: usize,
    pub slot: Option<usize>,
}

// === impl Target ===

impl Target {
    pub fn device(&self) -> &DeviceState {
        &self.state.devices[self.index]
    }

    pub fn instance(&self) -> Option<&InstanceState> {
        self.slot.and_then(|slot| self.device().slots[slot].as_ref())
    }

    pub fn has(&self, fault: Fault) -> bool {
        has(&self.state, Some(self.index), fault)
    }
}

/// Runs one call: no panic leaves it, and its result becomes a return code.
pub fn answer(call: impl FnOnce() -> Result<(), Code>) -> Return {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code as Return,
        Err(_) => Code::Unknown as Return,
    }
}

/// `nvmlInit`: connects if nobody has.
pub fn init() -> Result<(), Code> {
    let mut session = lock();
    if session.users == 0 {
        let mut client = Client::connect(&socket()).map_err(|_| Code::DriverNotLoaded)?;
        let state = client.state().map_err(|_| Code::DriverNotLoaded)?;
        session.generation = session.generation.wrapping_add(1);
        session.boot = state.boot;
        session.client = Some(client);
        session.users = 1;
        drop(session);
        if let Err(code) = refuse(None) {
            let _ = shutdown();
            return Err(code);
        }
        return Ok(());
    }
    session.users += 1;
    Ok(())
}

/// `nvmlShutdown`: the last user disconnects.
pub fn shutdown() -> Result<(), Code> {
    let mut session = lock();
    session.users = session.users.checked_sub(1).ok_or(Code::Uninitialized)?;
    if session.users == 0 {
        session.client = None;
    }
    Ok(())
}

/// The driver's state, for calls that concern no device.
pub fn state() -> Result<Arc<State>, Code> {
    refuse(None).map_err(|code| if code == Code::GpuIsLost { Code::DriverNotLoaded } else { code })
}

/// A handle for a device, or for an instance on it.
pub fn handle(index: usize, slot: Option<usize>) -> Handle {
    let generation = usize::from(lock().generation);
    std::ptr::without_provenance_mut(MAGIC | generation << 16 | index << 8 | slot.map_or(0, |slot| slot + 1))
}

/// What a handle names, unless its device fails altogether.
pub fn target(handle: Handle) -> Result<Target, Code> {
    let bits = handle.addr();
    let slot = (bits & 0xff).checked_sub(1);
    let index = bits >> 8 & 0xff;
    {
        let session = lock();
        if session.users == 0 {
            return Err(Code::Uninitialized);
        }
        if bits & !0xffff != MAGIC | usize::from(session.generation) << 16 {
            return Err(Code::InvalidArgument);
        }
    }
    let state = refuse(Some(index))?;
    let device = state.devices.get(index).ok_or(Code::InvalidArgument)?;
    if slot.is_some_and(|slot| device.slots.get(slot).is_none_or(Option::is_none)) {
        return Err(Code::InvalidArgument);
    }
    Ok(Target { state, index, slot })
}

/// The state, unless a fault of the device (or, without one, of all devices) ends every call. Hangs where it is to.
pub fn refuse(device: Option<usize>) -> Result<Arc<State>, Code> {
    loop {
        let state = ask()?;
        if has(&state, device, Fault::Hung) {
            thread::sleep(HUNG_POLL);
            continue;
        }
        let ending = [
            (Fault::LibMismatch, Code::LibRmVersionMismatch, true),
            (Fault::NoPermission, Code::NoPermission, true),
            (Fault::Unknown, Code::Unknown, true),
            (Fault::Lost, Code::GpuIsLost, false),
            (Fault::ResetRequired, Code::ResetRequired, false),
        ];
        for (fault, code, also_without_device) in ending {
            if (device.is_some() || also_without_device) && has(&state, device, fault) {
                return Err(code);
            }
        }
        return Ok(state);
    }
}

/// Asks the driver for something that is not in its state.
pub fn ask_driver(request: &Request) -> Result<Answer, Code> {
    let mut session = lock();
    let client = session.client.as_mut().ok_or(Code::Uninitialized)?;
    client.ask(request).map_err(|_| {
        session.client = None;
        Code::GpuIsLost
    })
}

fn has(state: &State, device: Option<usize>, fault: Fault) -> bool {
    let own = device.and_then(|index| state.devices.get(index));
    state.faults.contains(&fault) || own.is_some_and(|device| device.faults.contains(&fault))
}

fn ask() -> Result<Arc<State>, Code> {
    let mut session = lock();
    if session.users == 0 {
        return Err(Code::Uninitialized);
    }
    let boot = session.boot;
    let client = session.client.as_mut().ok_or(Code::GpuIsLost)?;
    match client.news() {
        Ok(state) if state.boot == boot => Ok(state),
        Ok(_) => Err(Code::GpuIsLost),
        Err(error) => {
            session.client = None;
            let timed_out = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            Err(if timed_out { Code::Timeout } else { Code::GpuIsLost })
        }
    }
}

fn lock() -> MutexGuard<'static, Session> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a count from the ABI as an index.
pub fn index(number: c_uint) -> usize {
    number as usize
}
