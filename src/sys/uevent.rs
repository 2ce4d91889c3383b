//! The kernel's own device events: netlink(7), `NETLINK_KOBJECT_UEVENT`, group 1.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::time::Duration;

use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// What the kernel says of a device (lib/kobject_uevent.c): `action@devpath`, then `KEY=value` texts, each
/// ended by a zero byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `remove`, `change`, `bind`, …
    pub action: String,
    /// Path below /sys.
    pub devpath: String,
    /// `MODALIAS`, where the device has one.
    pub modalias: Option<String>,
}

/// Reads one message; `None` for what does not come from the kernel (udev's own have a binary head).
pub fn parse(message: &[u8]) -> Option<Uevent> {
    let mut parts = message
        .split(|b| *b == 0)
        .map(|part| String::from_utf8_lossy(part));
    let head = parts.next()?;
    let (action, devpath) = head.split_once('@')?;
    let mut event = Uevent {
        action: action.to_owned(),
        devpath: devpath.to_owned(),
        modalias: None,
    };
    for part in parts {
        if let Some(modalias) = part.strip_prefix("MODALIAS=") {
            event.modalias = Some(modalias.to_owned());
        }
    }
    Some(event)
}

/// Hears device events.
#[derive(Debug)]
pub struct UeventSocket {
    socket: Socket,
}

/// What a wait for an event brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An event.
    Event(Uevent),
    /// Nothing within the time.
    Nothing,
    /// The queue ran over: events are lost, and whoever relies on them looks again.
    Lost,
}

impl UeventSocket {
    /// Opens it; events from now on are queued.
    pub fn open() -> io::Result<UeventSocket> {
        let mut socket = Socket::new(NETLINK_KOBJECT_UEVENT)?;
        socket.bind(&SocketAddr::new(0, 1))?;
        // A bus with a thousand devices must not overrun the default of 200 KiB. The plain call is capped by
        // rmem_max, so a refusal only means the default.
        let _ = socket.set_rx_buf_sz(8i32 << 20);
        Ok(UeventSocket { socket })
    }

    /// The next event, in at most `timeout`.
    pub fn next(&self, timeout: Duration) -> io::Result<Heard> {
        // SAFETY: the descriptor belongs to `self.socket`, which lives longer than this borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) };
        let mut waiting = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut waiting, timeout) {
            Ok(0) | Err(nix::Error::EINTR) => return Ok(Heard::Nothing),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // The kernel's buffer for one event is 2 KiB of texts and the head.
        let mut buffer = Vec::with_capacity(8192);
        match self.socket.recv_from(&mut buffer, libc::MSG_DONTWAIT) {
            // Port 0 is the kernel; anybody else with the right may send here too.
            Ok((_, from)) if from.port_number() == 0 => {
                Ok(parse(&buffer).map_or(Heard::Nothing, Heard::Event))
            }
            Ok(_) => Ok(Heard::Nothing),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Heard::Lost),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Heard::Nothing),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_added_pci_device() {
        let event = parse(
            b"add@/devices/pci0000:00/0000:00:03.0\0ACTION=add\0DEVPATH=/devices/pci0000:00/0000:00:03.0\0\
              SUBSYSTEM=pci\0MODALIAS=pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00\0SEQNUM=900\0",
        )
        .unwrap();
        assert_eq!(event.action, "add");
        assert_eq!(event.devpath, "/devices/pci0000:00/0000:00:03.0");
        assert_eq!(
            event.modalias.as_deref(),
            Some("pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00")
        );
        assert_eq!(parse(b"libudev\0\xfe\xed\xca\xfe"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
