//! Header fields: alignment one, network byte order, shared mutability. The one place that picks
//! the width of a load.

use core::cell::Cell;

use super::Wire;
use crate::addr::{Be16, Be32, Be128, Mac};

/// A byte of a header.
pub type N8 = Cell<u8>;

macro_rules! field {
    ($(#[$meta:meta])* $name:ident, $int:ty, $order:ty, $size:literal) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name(Cell<[u8; $size]>);

        // SAFETY: transparent over a cell of bytes, for which every bit pattern is valid.
        unsafe impl Wire for $name {}

        impl $name {
            /// The value of the field.
            #[inline(always)]
            pub fn get(&self) -> $order {
                #[cfg(target_arch = "bpf")]
                // SAFETY: `self` covers the bytes, and the bpf target has no alignment rule for
                // packet loads on x86-64; byte loads would cost half as many instructions again.
                let raw = unsafe { *self.0.as_ptr().cast::<$int>() };
                #[cfg(not(target_arch = "bpf"))]
                let raw = <$int>::from_ne_bytes(self.0.get());
                <$order>::from_raw(raw)
            }

            /// Writes the field.
            #[inline(always)]
            pub fn set(&self, value: $order) {
                #[cfg(target_arch = "bpf")]
                // SAFETY: as for `get`; a `Cell` may be written through a shared reference.
                unsafe {
                    *self.0.as_ptr().cast::<$int>() = value.raw();
                }
                #[cfg(not(target_arch = "bpf"))]
                self.0.set(value.raw().to_ne_bytes());
            }
        }
    };
}

field!(
    /// Two bytes in network order.
    N16,
    u16,
    Be16,
    2
);
field!(
    /// Four bytes in network order.
    N32,
    u32,
    Be32,
    4
);

// SAFETY: a `Cell` of one byte: alignment one, no padding, any bits are valid.
unsafe impl Wire for N8 {}

/// An Ethernet address in a header.
#[repr(C)]
#[derive(Debug)]
pub struct NMac([N16; 3]);

impl NMac {
    /// The address.
    #[inline(always)]
    pub fn get(&self) -> Mac {
        let [a, b, c] = &self.0;
        Mac::from_raw([a.get().raw(), b.get().raw(), c.get().raw()])
    }

    /// Writes the address.
    #[inline(always)]
    pub fn set(&self, mac: Mac) {
        let ([a, b, c], [x, y, z]) = (&self.0, mac.raw());
        a.set(Be16::from_raw(x));
        b.set(Be16::from_raw(y));
        c.set(Be16::from_raw(z));
    }
}

/// Sixteen bytes in network order: an IPv6 address in a header.
#[repr(C)]
#[derive(Debug)]
pub struct N128([N32; 4]);

impl N128 {
    /// The address.
    #[inline(always)]
    pub fn get(&self) -> Be128 {
        let [a, b, c, d] = &self.0;
        Be128::from_raw([a.get().raw(), b.get().raw(), c.get().raw(), d.get().raw()])
    }

    /// Writes the address.
    #[inline(always)]
    pub fn set(&self, address: Be128) {
        let ([a, b, c, d], [w, x, y, z]) = (&self.0, address.raw());
        a.set(Be32::from_raw(w));
        b.set(Be32::from_raw(x));
        c.set(Be32::from_raw(y));
        d.set(Be32::from_raw(z));
    }
}
