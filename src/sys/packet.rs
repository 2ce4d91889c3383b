//! IPv4 packets from and to one interface that has no address yet: packet(7), `SOCK_DGRAM`, `ETH_P_IP`.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socket};

/// `ETH_P_IP` (linux/if_ether.h) as the kernel wants it, in network order.
const ETH_P_IP: u16 = 0x0800u16.to_be();

/// A raw IPv4 socket that hears UDP to one port only.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: i32,
}

impl PacketSocket {
    /// Opens it on the interface with this index, for UDP to `port`.
    pub fn open(index: u32, port: u16) -> io::Result<PacketSocket> {
        let index = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Without a protocol nothing is queued until bind, which comes after the filter.
        let fd = socket(
            AddressFamily::Packet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?;
        let socket = PacketSocket { fd, index };
        socket.attach_filter(port)?;
        socket.bind()?;
        Ok(socket)
    }

    fn address(&self, destination: [u8; 6]) -> libc::sockaddr_ll {
        let mut hardware = [0u8; 8];
        for (to, from) in hardware.iter_mut().zip(destination) {
            *to = from;
        }
        libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).unwrap_or_default(),
            sll_protocol: ETH_P_IP,
            sll_ifindex: self.index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: hardware,
        }
    }

    fn bind(&self) -> io::Result<()> {
        let address = self.address([0; 6]);
        // SAFETY: the pointer and length describe `address`, which outlives the call; bind(2) only reads it.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                length_of::<libc::sockaddr_ll>(),
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Lets the kernel drop all but UDP to `port`: an install moves gigabytes over the same interface.
    fn attach_filter(&self, port: u16) -> io::Result<()> {
        // Classic BPF (linux/filter.h) over the IP packet: protocol at 9, fragment offset at 6, the UDP
        // destination port 2 behind the header, whose length is the low nibble of byte 0, in words.
        let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
            code: u16::try_from(code).unwrap_or_default(),
            jt,
            jf,
            k,
        };
        let mut program = [
            step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 9),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 6, 17),
            step(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, 6),
            step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 4, 0, 0x1fff),
            step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
            step(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 2),
            step(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                u32::from(port),
            ),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        ];
        let filter = libc::sock_fprog {
            len: u16::try_from(program.len()).unwrap_or_default(),
            filter: program.as_mut_ptr(),
        };
        // SAFETY: `filter` points to `program`, `len` steps long; both outlive the call, and the kernel
        // copies and checks the program before it returns (socket(7), SO_ATTACH_FILTER).
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const filter).cast(),
                length_of::<libc::sock_fprog>(),
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Sends one IPv4 packet to a hardware address.
    pub fn send(&self, packet: &[u8], destination: [u8; 6]) -> io::Result<()> {
        let address = self.address(destination);
        // SAFETY: both pointers come with the lengths of what they point to, which outlives the call;
        // sendto(2) only reads them.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT,
                (&raw const address).cast(),
                length_of::<libc::sockaddr_ll>(),
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// The next packet, in at most `timeout`; `None` where none came. A longer packet is cut to the buffer.
    pub fn receive<'b>(
        &self,
        buffer: &'b mut [u8],
        timeout: Duration,
    ) -> io::Result<Option<&'b [u8]>> {
        use std::os::fd::AsFd as _;
        let mut waiting = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut waiting, timeout) {
            Ok(0) | Err(nix::Error::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match recv(self.fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(n) => Ok(buffer.get(..n)),
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn length_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default()
}
