//! An array of the kernel's in this process's memory, whose values data plane and userspace read and write at once.
#![expect(
    unsafe_code,
    reason = "the values are shared with the kernel's programs"
)]

use std::{
    marker::PhantomData,
    os::fd::AsFd as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

use anyhow::{Context as _, Result};
use aya::{Pod, maps::InnerMap};
use memmap2::{MmapOptions, MmapRaw};

use super::flows::map;

/// A mapped array of values without padding, whose size is a multiple of eight bytes.
#[derive(Debug)]
pub(super) struct MappedArray<T> {
    memory: Arc<MmapRaw>,
    _values: PhantomData<fn() -> T>,
}

impl<T: Pod> MappedArray<T> {
    const IS_WHOLE: () = assert!(size_of::<T>() > 0 && size_of::<T>().is_multiple_of(8));

    /// Maps the pinned array `name` in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing or the kernel refuses the mapping.
    pub(super) fn open(folder: &Path, name: &str) -> Result<Self> {
        map(folder, name, size_of::<T>()).map(Self::of)
    }

    /// Maps an array that has no pin.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the mapping: the array may be none that can be mapped.
    pub(super) fn of_map(map: &impl InnerMap, values: u32) -> Result<Self> {
        let bytes = usize::try_from(values)? * size_of::<T>();
        let memory = MmapOptions::new().len(bytes).map_raw(&map.fd().as_fd());
        let memory = memory.context("map an array into memory")?;
        Ok(Self::of(Arc::new(memory)))
    }

    const fn of(memory: Arc<MmapRaw>) -> Self {
        let () = Self::IS_WHOLE;
        Self {
            memory,
            _values: PhantomData,
        }
    }

    /// How many values there are.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.memory.len() / size_of::<T>()).unwrap_or(u32::MAX)
    }

    /// A value, which may change while it is read; none beyond the end.
    pub(super) fn read(&self, index: u32) -> Option<T> {
        let value = self.value(index)?;
        // SAFETY: `value` is inside of the mapping and aligned to eight bytes; `T` is plain integers, so a torn read is a
        // valid value.
        Some(unsafe { value.read_volatile() })
    }

    /// Writes a value; nothing is written beyond the end.
    pub(super) fn write(&self, index: u32, new: T) {
        if let Some(value) = self.value(index) {
            // SAFETY: as for `read`.
            unsafe { value.write_volatile(new) }
        }
    }

    /// A word of a value, by its place there; none beyond the end.
    pub(super) fn word(&self, index: u32, place: usize) -> Option<&AtomicU32> {
        let word = self.inside(index, place, size_of::<u32>())?;
        // SAFETY: the word is inside of the mapping, which lives as long as `self`, and aligned; the kernel's side changes
        // such words only by single stores and atomic operations.
        Some(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// The same of eight bytes.
    pub(super) fn long_word(&self, index: u32, place: usize) -> Option<&AtomicU64> {
        let word = self.inside(index, place, size_of::<u64>())?;
        // SAFETY: as for `word`.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// The word of so many bytes at a place of a value.
    fn inside(&self, index: u32, place: usize, bytes: usize) -> Option<*mut T> {
        let offset = place
            .checked_mul(bytes)
            .filter(|offset| *offset < size_of::<T>())?;
        Some(self.value(index)?.wrapping_byte_add(offset))
    }

    fn value(&self, index: u32) -> Option<*mut T> {
        let offset = usize::try_from(index).ok()?.checked_mul(size_of::<T>())?;
        let is_inside = offset < self.memory.len();
        is_inside.then(|| self.memory.as_mut_ptr().wrapping_add(offset).cast())
    }
}

/// Arrays in memory that no kernel knows.
#[cfg(test)]
mod twin {
    use super::*;
    use crate::dataplane::flows::twin::memory;

    impl<T: Pod> MappedArray<T> {
        pub(in crate::dataplane) fn anonymous(values: u32) -> Self {
            Self::of(memory(usize::try_from(values).unwrap() * size_of::<T>()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn values_and_their_words_have_an_end() {
        let array = MappedArray::<[u64; 2]>::anonymous(3);
        array.write(2, [1 << 32 | 7, 9]);
        array.write(3, [1, 1]);
        let values: Vec<_> = (0..4).map(|index| array.read(index)).collect();
        assert_eq!(
            values,
            [Some([0, 0]), Some([0, 0]), Some([1 << 32 | 7, 9]), None]
        );
        assert_eq!(array.len(), 3);
        let word = |index, place| Some(array.word(index, place)?.load(Ordering::Relaxed));
        assert_eq!(
            [word(2, 0), word(2, 1), word(2, 3)],
            [Some(7), Some(1), Some(0)]
        );
        assert_eq!([word(2, 4), word(3, 0)], [None, None]);
        let long = |index, place| Some(array.long_word(index, place)?.load(Ordering::Relaxed));
        assert_eq!([long(2, 1), long(2, 2), long(3, 0)], [Some(9), None, None]);
    }
}
