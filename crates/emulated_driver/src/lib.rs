//! A stand-in for the CUDA driver: it has the functions of libcuda that Overspill calls, and runs the kernels on the CPU.
//!
//! The product loads it through the same path as NVIDIA's driver and cannot tell the difference, except by the name of the
//! device. It is stricter than a GPU where that finds mistakes: a stream does its work only when somebody waits for it, fresh
//! memory holds a pattern, and pinned memory must be registered before it is copied from asynchronously without staging. It
//! has a memory limit, fails when it is told to (`control.rs`), and counts what was not given back.
//!
//! It says nothing about speed.

mod control;
mod device;
mod error;
mod event;
mod kernel;
mod memory;
mod module;
mod nvml;
mod state;
mod stream;
mod transfer;
mod virtual_memory;
