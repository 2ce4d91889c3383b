# shellcheck shell=bash
# The lab's registry: Debian's docker-registry on 127.0.0.1:5000 in the caller's network namespace. Needs log.sh, packages.sh.

# start_registry STATE_DIRECTORY LAYOUT NAME: serves the OCI image layout LAYOUT as NAME:latest until this shell ends.
start_registry() {
    local state=$1 layout=$2 name=$3 tries=0
    need_packages docker-registry skopeo
    rm -rf "$state/registry" && mkdir -p "$state/registry"
    cat >"$state/registry.yml" <<END
version: 0.1
storage: { filesystem: { rootdirectory: $state/registry } }
http: { addr: 127.0.0.1:5000 }
END
    docker-registry serve "$state/registry.yml" >"$state/registry.log" 2>&1 &
    REGISTRY_PID=$!
    trap 'kill "$WEB_PID" "$REGISTRY_PID" 2>/dev/null || true' EXIT
    until (exec 3<>/dev/tcp/127.0.0.1/5000) 2>/dev/null; do
        tries=$((tries + 1))
        { [ $tries -lt 100 ] && kill -0 "$REGISTRY_PID" 2>/dev/null; } ||
            die "docker-registry does not answer" "see $state/registry.log"
        sleep 0.1
    done
    "$ROOT/scripts/publish-image" --plain-http "$layout" "127.0.0.1:5000/$name:latest" >&2
}
