//! Free ids on their way between userspace and a queue: the frame that `lb_fill` and `lb_turn` are run on.

/// Ids of one run. A frame may be as long as a page less what the kernel keeps of it, more than 700 ids on
/// every kernel; but the verifier walks each place.
pub const MAX_IDS: usize = 128;

/// The frame, words of this machine's order.
#[repr(C)]
#[derive(Debug)]
pub struct Batch {
    /// Index of the SNAT address's queue.
    pub slot: u32,
    /// How many ids there are; of `lb_turn`: how many there may be.
    pub count: u32,
    /// Of `lb_turn`: the id that is the last one of the turn; 0 for none.
    pub last: u32,
    /// Of `lb_fill`: what goes into the queue. Of `lb_turn`: what was met, in order.
    pub ids: [u32; MAX_IDS],
}

/// What a program returns if there is no such queue or the queue refused an id; else it returns how many ids
/// it has dealt with.
pub const FAILED: u32 = u32::MAX;

impl Batch {
    /// Bytes of the frame.
    pub const BYTES: usize = size_of::<Self>();
    /// Words before the ids.
    pub const HEAD: usize = Self::BYTES / size_of::<u32>() - MAX_IDS;
}
