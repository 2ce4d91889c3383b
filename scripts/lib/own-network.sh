# shellcheck shell=bash
# A network of one's own: fixed ports are free there, nothing inside reaches the outside, and all
# processes started in it end with it. Needs packages.sh.

# in_own_network COMMAND…: with only a loopback interface, in its own network and process namespace.
in_own_network() {
    need_packages iproute2 util-linux
    # kill-child: whatever ends the caller, no server and no machine is left behind.
    # shellcheck disable=SC2016 # expanded by the inner shell
    as_root unshare --net --pid --fork --kill-child --mount-proc \
        bash -c 'ip link set lo up && "$@"' own-network "$@"
}

# enter_own_network SCRIPT ARG…: runs the calling script once more, inside; returns there, exits outside.
enter_own_network() {
    [ "${IN_OWN_NETWORK:-}" != yes ] || return 0
    local status=0
    in_own_network env IN_OWN_NETWORK=yes "$@" || status=$?
    exit "$status"
}
