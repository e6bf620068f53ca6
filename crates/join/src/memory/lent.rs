//! Vectors that are reused.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use arrow::buffer::ScalarBuffer;
use arrow::datatypes::ArrowNativeType;

/// Maximum lent buffers to keep for reuse; older ones are given up.
const MOST: usize = 4;

/// A vector that is lent as a buffer, batch after batch, and refilled once the buffer has no other owner. An allocator would
/// return memory that has left the cache.
#[derive(Debug)]
pub struct LentVec<T: ArrowNativeType> {
    values: Vec<T>,
    lent: VecDeque<ScalarBuffer<T>>,
}

impl<T: ArrowNativeType> Default for LentVec<T> {
    fn default() -> Self {
        Self { values: Vec::new(), lent: VecDeque::new() }
    }
}

impl<T: ArrowNativeType> From<Vec<T>> for LentVec<T> {
    fn from(values: Vec<T>) -> Self {
        Self { values, lent: VecDeque::new() }
    }
}

impl<T: ArrowNativeType> LentVec<T> {
    /// The vector to fill, with arbitrary contents.
    pub(crate) fn refill(&mut self) -> &mut Vec<T> {
        if self.values.capacity() == 0
            && let Some(oldest) = self.lent.pop_front()
        {
            match oldest.into_inner().into_vec() {
                Ok(values) => self.values = values,
                Err(in_use) => self.lent.push_front(in_use.into()),
            }
        }
        &mut self.values
    }

    /// Lends the contents of the vector, and leaves it empty.
    pub(crate) fn lend(&mut self) -> ScalarBuffer<T> {
        let buffer = ScalarBuffer::from(std::mem::take(&mut self.values));
        if self.lent.len() == MOST {
            self.lent.pop_front();
        }
        self.lent.push_back(buffer.clone());
        buffer
    }
}

impl<T: ArrowNativeType> Deref for LentVec<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.values
    }
}

impl<T: ArrowNativeType> DerefMut for LentVec<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lent_is_filled_again_only_when_nobody_has_it() {
        let mut lent = LentVec::<u32>::default();
        lent.refill().extend(0..1_000);
        let first = lent.lend();
        assert!(lent.is_empty());
        lent.refill().extend(5..10);
        let second = lent.lend();
        assert_eq!((first[999], &second[..]), (999, &[5, 6, 7, 8, 9][..]));
        let place = first.as_ptr();
        drop(first);
        assert_eq!(lent.refill().as_ptr(), place);
        // The second is still lent.
        lent.lend();
        let other = lent.refill();
        other.clear();
        other.push(3);
        assert_eq!(&second[..], [5, 6, 7, 8, 9]);
        for number in 0..20 {
            lent.refill().push(number);
            let _ = lent.lend();
        }
        assert_eq!(lent.lent.len(), MOST);
    }
}
