//! Ranges of memory that kernels are given.

use std::marker::PhantomData;

use crate::{Error, Result};

/// Memory that kernels read, borrowed from the buffer that owns it. Wherever it is placed, it has one address for kernels.
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

    /// A view of nothing.
    pub fn empty() -> Self {
        Self::new(0, 0)
    }

    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of the view.
    ///
    /// # Errors
    /// If it is not within.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self> {
        check(offset, bytes, self.bytes)?;
        Ok(Self::new(self.address + offset, bytes))
    }
}

impl<'a> ViewMut<'a> {
    pub(super) fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes, borrow: PhantomData }
    }

    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of the view.
    ///
    /// # Errors
    /// If it is not within.
    pub fn slice(&mut self, offset: u64, bytes: u64) -> Result<ViewMut<'_>> {
        check(offset, bytes, self.bytes)?;
        Ok(ViewMut::new(self.address + offset, bytes))
    }

    /// The same memory, to be read.
    pub fn as_view(&self) -> View<'_> {
        View::new(self.address, self.bytes)
    }
}

fn check(offset: u64, bytes: u64, available: u64) -> Result<()> {
    if offset.checked_add(bytes).is_none_or(|end| end > available) {
        return Err(Error::Invalid(format!("{bytes} bytes from {offset} on do not lie within {available}")));
    }
    Ok(())
}
