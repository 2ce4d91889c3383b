# shellcheck shell=bash
# Commands inside a tree of files that is a system. Needs packages.sh.

# in_tree TREE COMMAND…: with /proc and /dev, in a mount namespace that takes them away again.
in_tree() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    as_root unshare --mount --propagation private sh -euc '
        tree=$1; shift
        mount -t proc proc "$tree/proc"; mount --rbind /dev "$tree/dev"; mount -t tmpfs tmp "$tree/tmp"
        LC_ALL=C exec chroot "$tree" "$@"' in-tree "$@"
}
