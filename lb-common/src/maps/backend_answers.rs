//! How backends answer SYNs: what says that one is dead before a check does.

use crate::pod::pod_struct;

pod_struct! {
    /// Of a backend, at the index of its id. 24 bytes. Written by the data plane, each count by atomic addition; all of
    /// them wrap.
    pub struct BackendAnswers {
        /// SYNs that a client has repeated because this backend had not answered.
        pub unanswered: u32,
        /// SYNs that it refused by a RST.
        pub refused: u32,
        /// Connections that went on to another backend.
        pub redispatched: u32,
        /// Coarse time of its last SYN-ACK, in the unit of `Flow::last_seen`. Plain stores: the latest one counts.
        pub last_answer: u32,
        /// A bit for each client whose SYN it did not answer, or refused, by [`client_bit`]. Plain stores: a client
        /// that is lost to a race of two CPUs repeats its SYN.
        pub clients: u64,
    }
}

/// The bit of a client in [`BackendAnswers::clients`]; `address` is the client's of its flow's key.
#[inline(always)]
pub const fn client_bit(address: u32) -> u64 {
    1 << (address.wrapping_mul(0x9e37_79b1) >> 26)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_a_subnet_have_bits_of_their_own() {
        let bits = |count: u32| {
            let clients = (0..count).map(|host| client_bit((0xc0a8_cb00 + host).swap_bytes()));
            clients.fold(0, |all, bit| all | bit).count_ones()
        };
        assert_eq!(bits(1), 1);
        assert!(bits(16) > 8, "{}", bits(16));
        assert!(bits(1000) > 56, "{}", bits(1000));
    }
}
