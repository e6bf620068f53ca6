//! A stand-in for the CUDA driver. It provides the functions of libcuda that Overspill calls, and runs the kernels on the
//! CPU.
//!
//! The product loads it through the same path as NVIDIA's driver and can distinguish it only by the name of the device. It is
//! stricter than a GPU where this exposes errors: a stream does its work only when a caller waits for it, fresh memory holds
//! a pattern, and pinned memory must be registered to be copied asynchronously without staging. It has a memory limit, fails
//! on request (`settings.rs`), and counts leaks.
//!
//! Its speed is not representative.
//!
//! Each function named `cu…` has the contract of the function of that name in the CUDA driver API: that is what its callers
//! promise where a function is unsafe.

mod clock;
mod context;
mod control;
mod device;
mod error;
mod event;
mod kernel;
mod launch;
mod memory;
mod module;
mod nvml;
mod pieces;
mod queue;
mod ranges;
mod settings;
mod state;
mod statistics;
mod stream;
mod transfer;
mod virtual_memory;
mod work;
