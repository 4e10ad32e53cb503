#!/usr/bin/env bash
# Two hosts on one machine: network namespaces joined by a pair of virtual links, each with a host name of its own, two
# ranks each. MPI sees two hosts: shared memory inside them, TCP between them. Usage: two_hosts.sh [--tcp] RANKS-PROGRAM
# ARGUMENT…; with --tcp there is no MPI, and every rank has the environment that torchrun would give it; with
# --tcp --strangers=LOG, strangers connect to all ports meanwhile.
# `two_hosts.sh --possible` says by its exit code whether this machine permits it (root, namespaces). Called by ctest.
set -euo pipefail

if [[ ${1:-} == --possible ]]; then
    name=tuttip$$
    ip netns add "$name" 2>/dev/null || exit 1
    code=0
    ip netns exec "$name" unshare --uts --pid --fork --mount-proc true 2>/dev/null || code=1
    ip netns del "$name"
    exit $code
fi

id=$$
folder=$(mktemp -d)
first=tuttia$id second=tuttib$id
# A subnet of this run's own, so that runs beside each other do not meet.
net=10.$((id / 254 % 254 + 1)).$((id % 254 + 1))
clean_up() {
    for space in "$first" "$second"; do ip netns del "$space" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap clean_up EXIT

ip netns add "$first"
ip netns add "$second"
ip link add "ta$id" netns "$first" type veth peer name "tb$id" netns "$second"
ip -n "$first" addr add "$net.1/24" dev "ta$id"
ip -n "$second" addr add "$net.2/24" dev "tb$id"
for end in "$first ta$id" "$second tb$id"; do
    read -r space link <<<"$end"
    ip -n "$space" link set lo up
    ip -n "$space" link set "$link" up
done

# What mpirun uses in place of ssh: `agent HOST COMMAND…`.
cat >"$folder/agent" <<END
#!/bin/sh
shift; exec ip netns exec $second unshare --uts sh -c "hostname $second; \$*"
END
chmod +x "$folder/agent"

if [[ ${1:-} == --tcp ]]; then
    shift
    strangers=()
    if [[ $1 == --strangers=* ]]; then # at every port of both hosts, all the while
        for space in "$first" "$second"; do
            LD_PRELOAD='' ip netns exec "$space" python3 "$(dirname "$0")/../campaign/strangers.py" --log "${1#*=}" &
            strangers+=($!)
        done
        shift
    fi
    export TUTTI_SECRET=${TUTTI_SECRET-$(head -c 32 /dev/urandom | sha256sum | cut -c1-64)}
    # A process table for each host: ranks that see each other's processes would share memory.
    # shellcheck disable=SC2016
    host='hostname "$0"; first=$1 address=$2 ranks=(); shift 2
        for rank in $first $((first + 1)); do
            RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=$address MASTER_PORT=29500 "$@" &
            ranks+=($!)
        done
        code=0 # the largest: a culprit is above its victims
        for pid in "${ranks[@]}"; do of_rank=0; wait "$pid" || of_rank=$?; ((of_rank <= code)) || code=$of_rank; done
        exit $code'
    hosts=() rank=0
    for space in "$first" "$second"; do
        ip netns exec "$space" unshare --uts --pid --fork --kill-child --mount-proc bash -c "$host" "$space" $rank "$net.1" "$@" &
        hosts+=($!) rank=2
    done
    code=0
    for pid in "${hosts[@]}"; do
        of_host=0
        wait "$pid" || of_host=$?
        ((of_host <= code)) || code=$of_host
    done
    for pid in "${strangers[@]}"; do
        kill "$pid"
        wait "$pid" || true
    done
    exit $code
fi

exports=()
for name in TUTTI_TEST_DIR ASAN_OPTIONS; do
    if [[ -n ${!name:-} ]]; then exports+=(-x "$name"); fi
done
ip netns exec "$first" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$first" \
    mpirun --allow-run-as-root --oversubscribe --bind-to none --host "$net.1:2,$net.2:2" -n 4 \
    --mca plm_rsh_agent "$folder/agent" --mca btl_tcp_if_include "$net.0/24" --mca oob_tcp_if_include "$net.0/24" \
    "${exports[@]}" "$@"
