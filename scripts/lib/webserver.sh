# shellcheck shell=bash
# The lab's web server: nginx with its own files, in the caller's network namespace. Needs log.sh, packages.sh.

# start_web STATE_DIRECTORY PORT: serves STATE_DIRECTORY/www on 127.0.0.1 until this shell ends.
# What is POSTed to /report is kept in STATE_DIRECTORY/reports.jsonl, a body a line.
start_web() {
    local state=$1 port=$2 tries=0
    need_packages nginx-light
    mkdir -p "$state/www" "$state/tmp"
    : >"$state/reports.jsonl"
    sed -e "s|@STATE@|$state|g" -e "s|@PORT@|$port|g" "$ROOT/scripts/lib/webserver.nginx" >"$state/nginx.conf"
    /usr/sbin/nginx -p "$state" -e "$state/nginx-error.log" -c "$state/nginx.conf" &
    WEB_PID=$!
    trap 'kill "$WEB_PID" ${NAMES_PID:-} 2>/dev/null || true' EXIT
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        tries=$((tries + 1))
        { [ $tries -lt 50 ] && kill -0 "$WEB_PID" 2>/dev/null; } ||
            die "nginx does not answer on port $port" "see $state/nginx-error.log"
        sleep 0.1
    done
}

# start_names STATE_DIRECTORY HOSTS: a name server on 127.0.0.1 that knows the names of HOSTS, all below example, and no others. QEMU's user
# network asks the resolver of this mount namespace, which has to be the caller's own: it is changed.
start_names() {
    local state=$1 hosts=$2
    need_packages dnsmasq-base
    # local: a name without an IPv6 address is answered so. Refused, as dnsmasq else does for want of a server to ask, musl's
    # resolver takes it for no answer and asks until its time is up, though it has the IPv4 address; glibc does not mind.
    dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --no-resolv --no-hosts --addn-hosts="$hosts" --local=/example/ \
        --listen-address=127.0.0.1 --bind-interfaces --user=root &
    NAMES_PID=$!
    echo 'nameserver 127.0.0.1' >"$state/resolv.conf"
    as_root mount --bind "$state/resolv.conf" "$(realpath /etc/resolv.conf)"
}
