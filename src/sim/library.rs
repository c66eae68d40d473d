//! Where the built `libnvidia-ml.so.1` lies, for tests that load it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name cargo gives the library.
const BUILT: &str = "libgpumem_sim.so";

/// The library as cargo built it: beside this executable, in `deps`, or a folder up.
pub fn find() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let folders = exe.ancestors().skip(1).take(3).flat_map(|folder| [folder.join("deps"), folder.to_owned()]);
    folders.map(|folder| folder.join(BUILT)).find(|library| library.exists())
}

/// Copies the library into a folder under the name that NVML readers load.
///
/// A driver whose socket is `driver.sock` in the same folder is the one it asks. Each copy has its own state, so one
/// process can read several drivers.
///
/// # Errors
/// Nothing is built, or it cannot be copied.
pub fn install(folder: &Path) -> io::Result<PathBuf> {
    let built = find().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{BUILT} is not built")))?;
    let installed = folder.join("libnvidia-ml.so.1");
    fs::copy(built, &installed)?;
    Ok(installed)
}
