//! The groups of the process at the other end of a unix socket, as the kernel saw it connect.

#![expect(
    unsafe_code,
    reason = "no safe getter is for a socket option whose length is not known before"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
};

use nix::{
    errno::Errno,
    libc::{self, gid_t, socklen_t},
};

/// How many groups most processes have at most.
const USUAL_GROUPS: usize = 64;
/// The most groups of a process (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 1 << 16;

/// Its supplementary groups (`SO_PEERGROUPS`, Linux 4.13).
pub(super) fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    match read(socket, USUAL_GROUPS) {
        Err(Errno::ERANGE) => Ok(read(socket, MAX_GROUPS)?),
        found => Ok(found?),
    }
}

fn read(socket: &impl AsFd, room: usize) -> Result<Vec<u32>, Errno> {
    let mut groups: Vec<gid_t> = vec![0; room];
    let bytes = size_of_val(groups.as_slice());
    let mut length = socklen_t::try_from(bytes).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel writes at most `length` bytes, which is how many there are, and returns how many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(done)?;
    let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
    groups.truncate(length / size_of::<gid_t>());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_a_peer_are_those_of_its_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = nix::unistd::getgroups().unwrap();
        let own: Vec<u32> = own.into_iter().map(nix::unistd::Gid::as_raw).collect();
        assert_eq!(groups(&one).unwrap(), own);
    }

    #[test]
    fn what_is_no_unix_socket_has_no_groups() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(groups(&socket).is_err());
    }
}
