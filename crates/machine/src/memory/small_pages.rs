//! Memory without huge pages.

use crate::{Error, Result};

/// Does `work` while the system gives this process no huge pages, even for buffers that ask for them: what costs address translation
/// can then be measured. Memory that other threads allocate meanwhile has small pages too.
///
/// # Errors
/// If the system does not allow it.
pub fn in_small_pages<R>(work: impl FnOnce() -> R) -> Result<R> {
    /// Gives huge pages as before, also after a panic.
    struct Before(bool);

    impl Drop for Before {
        fn drop(&mut self) {
            // The system has allowed it once.
            let _ = disable(self.0);
        }
    }

    let _before = Before(are_disabled());
    disable(true)?;
    Ok(work())
}

fn are_disabled() -> bool {
    let none: libc::c_ulong = 0;
    // SAFETY: reads an attribute of the process.
    unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, none, none, none, none) == 1 }
}

fn disable(huge_pages: bool) -> Result<()> {
    let none: libc::c_ulong = 0;
    // SAFETY: sets an attribute of the process, by numbers alone.
    let result = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(huge_pages), none, none, none) };
    if result == 0 {
        return Ok(());
    }
    let reason = std::io::Error::last_os_error();
    Err(Error::Invalid(format!("the system does not let a process go without huge pages: {reason}")))
}
