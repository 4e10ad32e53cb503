#!/usr/bin/env bash
# A Slurm of one node, for the time of one command: slurm.sh [--mpi=none] RANKS PROGRAM ARGUMENT… runs `srun --mpi=pmix -n
# RANKS PROGRAM ARGUMENT…` and returns its exit code; slurm.sh --script PROGRAM ARGUMENT… runs the program itself, which
# may call sbatch. Needs root and the Debian packages slurm-wlm and munge; `slurm.sh --possible` says by
# its exit code whether they are there. The daemons listen on ports of their own. They live in a process namespace that ends
# with the script: asked to stop, slurmd waits for a step that waits for slurmctld, which has stopped. Called by ctest.
set -euo pipefail

if [[ ${1:-} == --possible ]]; then
    ((EUID == 0)) || exit 1
    for program in srun slurmctld slurmd munged; do command -v $program >/dev/null || exit 1; done
    compgen -G "/usr/lib/*/slurm-wlm/mpi_pmix.so" >/dev/null && unshare --pid --fork --mount-proc true
    exit
fi
if (($$ != 1)); then exec unshare --pid --fork --mount-proc --kill-child "$0" "$@"; fi

folder=$(mktemp -d)
chmod 755 "$folder"
trap 'rm -rf "$folder"' EXIT
port=$((20000 + RANDOM % 20000))
host=$(hostname -s)

# munge authenticates the daemons to each other; a key and a socket of this script's own.
mkdir -m 700 "$folder/munge"
dd if=/dev/urandom of="$folder/munge/key" bs=1 count=1024 status=none
chmod 400 "$folder/munge/key"
munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" 2>/dev/null &

cat >"$folder/slurm.conf" <<END
ClusterName=tutti
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder
TmpFS=$folder
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmix
ReturnToService=2
SelectType=select/cons_tres
NodeName=$host NodeAddr=127.0.0.1 CPUs=64 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
SlurmdParameters=config_overrides
END
export SLURM_CONF=$folder/slurm.conf
slurmctld -D >"$folder/slurmctld.log" 2>&1 &
slurmd -D >"$folder/slurmd.log" 2>&1 &
for _ in $(seq 100); do
    if sinfo -h -o %t 2>/dev/null | grep -q idle; then break; fi
    sleep 0.2
done
if ! sinfo -h -o %t 2>/dev/null | grep -q idle; then
    echo "slurm.sh: the node does not come up" >&2
    tail -5 "$folder"/slurm*.log >&2
    exit 1
fi

if [[ $1 == --script ]]; then
    shift
    code=0
    "$@" || code=$?
    exit $code
fi
mpi=--mpi=pmix
if [[ $1 == --mpi=* ]]; then
    mpi=$1
    shift
fi
ranks=$1
shift
code=0
# srun returns 0 when it could not start anything: every rank leaves a line.
# shellcheck disable=SC2016
srun "$mpi" --kill-on-bad-exit=1 -n "$ranks" bash -c 'echo "$SLURM_PROCID" >>"$0" && exec "$@"' "$folder/started" "$@" || code=$?
if ((code == 0)) && [[ $(wc -l <"$folder/started") != "$ranks" ]]; then
    echo "slurm.sh: srun did not start $ranks ranks" >&2
    code=1
fi
exit $code
