//! `pod_struct!`: a map record without padding, readable on both sides.

/// Declares a `#[repr(C)]` record for a map and proves at compile time that it has no padding.
///
/// With the feature `user` the record is also `aya::Pod`.
macro_rules! pod_struct {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)+
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)+ }

        const _: () = assert!(
            size_of::<$name>() == 0 $(+ size_of::<$ty>())+,
            "a map record must not have padding"
        );

        // SAFETY: the record is `Copy`, `repr(C)`, made of plain integers, and the assertion above
        // proves that it has no padding bytes.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    };
}
pub(crate) use pod_struct;
