#!/bin/sh
# emergency hook, sourced, of an initrd without systemd: rd.emergency= is done by programs that may be systemd's, and those
# would ask a systemd that is not there. By force they do it themselves.
reboot() { command reboot -f; }
poweroff() { command poweroff -f; }
halt() { command halt -f; }
