//! Where the library finds its driver.
//!
//! A `driver.sock` beside the library's own file comes first, so that a folder holding both is all a container has to
//! mount, and several drivers can be read from one process through copies of the library. Then the environment, then the
//! default.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::client::socket_from_env;

/// The driver's socket.
pub fn socket() -> PathBuf {
    let beside = own_file().and_then(|file| Some(Path::new(file).parent()?.join("driver.sock")));
    beside.filter(|socket| socket.exists()).unwrap_or_else(socket_from_env)
}

/// The file this code was loaded from.
fn own_file() -> Option<&'static OsStr> {
    // SAFETY: an all-zero Dl_info is a valid value (null pointers); it lives through the call, and the address asked for
    // is one of this code's own functions.
    let info = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let address: fn() -> PathBuf = socket;
        (libc::dladdr(address as *const libc::c_void, &raw mut info) != 0).then_some(info)
    }?;
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null, so a C string that the loader keeps for as long as this code is loaded.
    Some(OsStr::from_bytes(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()))
}
