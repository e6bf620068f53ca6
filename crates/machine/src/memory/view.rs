//! Ranges of memory that are passed to kernels.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Error, Result};

/// Memory that kernels read, borrowed from the buffer that owns it. With any placement, it has one address for kernels.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    address: u64,
    bytes: u64,
    borrow: PhantomData<&'a [u8]>,
}

/// Memory that kernels write, borrowed from the buffer that owns it.
#[derive(Debug)]
pub struct ViewMut<'a> {
    address: u64,
    bytes: u64,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> View<'a> {
    pub(super) fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes, borrow: PhantomData }
    }

    /// An empty view.
    pub fn empty() -> Self {
        Self::new(0, 0)
    }

    /// The address for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of the view.
    ///
    /// # Errors
    /// If the part is outside the view.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self> {
        check(offset, bytes, self.bytes)?;
        Ok(Self::new(self.address + offset, bytes))
    }
}

impl<'a> ViewMut<'a> {
    pub(super) fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes, borrow: PhantomData }
    }

    /// The address for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of the view.
    ///
    /// # Errors
    /// If the part is outside the view.
    pub fn slice(&mut self, offset: u64, bytes: u64) -> Result<ViewMut<'_>> {
        check(offset, bytes, self.bytes)?;
        Ok(ViewMut::new(self.address + offset, bytes))
    }

    /// The first `bytes` bytes, and the others.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn split_at(self, bytes: u64) -> Result<(ViewMut<'a>, ViewMut<'a>)> {
        check(0, bytes, self.bytes)?;
        Ok((ViewMut::new(self.address, bytes), ViewMut::new(self.address + bytes, self.bytes - bytes)))
    }

    /// A read-only view of the same memory.
    pub fn as_view(&self) -> View<'_> {
        View::new(self.address, self.bytes)
    }
}

/// Memory that kernels read, wherever it is. It must stay where it is as long as the value lives.
pub trait Readable: Debug + Send + Sync {
    /// A view of all of it.
    ///
    /// # Errors
    /// If the device cannot read such memory.
    fn readable(&self) -> Result<View<'_>>;
}

/// A part of memory that kernels read, which owns that memory together with others. Work that goes on after the call that has
/// queued it holds such views.
#[derive(Debug, Clone)]
pub struct SharedView {
    memory: Arc<dyn Readable>,
    offset: u64,
    bytes: u64,
}

impl SharedView {
    /// The `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// If the memory is shorter.
    pub fn new(memory: Arc<dyn Readable>, offset: u64, bytes: u64) -> Result<Self> {
        memory.readable()?.slice(offset, bytes)?;
        Ok(Self { memory, offset, bytes })
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The view.
    ///
    /// # Errors
    /// If the device cannot read the memory.
    pub fn view(&self) -> Result<View<'_>> {
        self.memory.readable()?.slice(self.offset, self.bytes)
    }

    /// A part of the view.
    ///
    /// # Errors
    /// If the part is outside the view.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self> {
        check(offset, bytes, self.bytes)?;
        Ok(Self { memory: Arc::clone(&self.memory), offset: self.offset + offset, bytes })
    }
}

fn check(offset: u64, bytes: u64, available: u64) -> Result<()> {
    if offset.checked_add(bytes).is_none_or(|end| end > available) {
        return Err(Error::Invalid(format!("{bytes} bytes from {offset} on do not lie within {available}")));
    }
    Ok(())
}
