#!/usr/bin/env bash
# scripts/test_package.sh PACKAGES: installs the archive, the Debian package and the wheel of scripts/package.sh, each
# where nothing else is, runs the program and removes it again. The archive and the Debian package are tried in a bare
# root file system without network: what debootstrap calls a minimal Debian 12, where there are debootstrap, root and a
# mirror; else the files of libc6 copied from this machine. Says which it was.
#
# TUTTI_BARE_ROOT=DIR: a root file system that is there already; it is copied.
set -euo pipefail
[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: $0 PACKAGES" >&2; exit 2; }
packages=$(cd "$1" && pwd)
one() { # the one file of a pattern
    local files=("$packages"/$1)
    [[ ${#files[@]} == 1 && -f ${files[0]} ]] || { echo "test_package.sh: required: one $1 in $packages" >&2; exit 2; }
    echo "${files[0]}"
}
archive=$(one 'tutti-*.tar.gz') debian=$(one 'tutti_*.deb') wheel=$(one 'tutti_train-*.whl')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

make_root() {
    if [[ -n ${TUTTI_BARE_ROOT:-} ]]; then
        cp -a "$TUTTI_BARE_ROOT" "$root"
        echo "== bare root: a copy of $TUTTI_BARE_ROOT"
    elif ((EUID == 0)) && command -v debootstrap >/dev/null &&
        debootstrap --variant=minbase bookworm "$root" >"$work/debootstrap.log" 2>&1; then
        echo "== bare root: debootstrap --variant=minbase bookworm, $(du -sm "$root" | cut -f 1) MiB"
    else
        rm -rf "$root"
        mkdir -p "$root"
        dpkg -L libc6 | while IFS= read -r path; do [[ -d $path ]] || echo "${path#/}"; done |
            tar --create --directory=/ --files-from=- | tar --extract --directory="$root"
        echo "== bare root: the files of libc6 of this machine, $(du -sm "$root" | cut -f 1) MiB"
    fi
    mkdir -p "$root"/{proc,dev,tmp,opt}
}

as_root=()
if ((EUID)); then as_root=(--map-root-user); fi
# inside COMMAND...: in the root file system, with processes, mounts and a network (without any link) of its own, and the
# variables of `environment`.
environment=()
inside() {
    # shellcheck disable=SC2016
    environment="${environment[*]}" unshare "${as_root[@]}" --mount --pid --net --fork sh -c '
        root=$1 && shift
        mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && cd / &&
        exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp $environment chroot "$root" "$@"' sh "$root" "$@"
}

losses() { grep -o '"loss":[0-9.]*' "$1/metrics.jsonl" | tr '\n' ' '; }
fail() { echo "test_package.sh: $1" >&2 && exit 1; }

# tries NAME PROGRAM: what a user does first, with the program inside the root file system.
tries() {
    local name=$1 program=$2 code=0 output
    echo "== $name: $(inside "$program" version)"
    output=$(inside "$program" doctor) || fail "$name: tutti doctor failed: $output"
    [[ $output == *"kernels that run"*cpu-* ]] || fail "$name: tutti doctor names no kernels: $output"
    rm -rf "$root/tmp/run"
    inside "$program" train /tmp/run.toml --ranks 2 --out /tmp/run >"$work/train.log" 2>&1 ||
        fail "$name: training failed: $(cat "$work/train.log")"
    [[ $(losses "$root/tmp/run") == "$here" ]] ||
        fail "$name: the losses are $(losses "$root/tmp/run"), those of the same program outside $here"
    inside "$program" data tokenize /tmp/text.txt --tokenizer /tmp/sentencepiece.model --out /tmp/tokens >"$work/tokenize.log" 2>&1 ||
        fail "$name: tokenizing failed: $(cat "$work/tokenize.log")"
    cmp "$root/tmp/tokens.bin" "$work/here/tokens.bin" || fail "$name: other tokens than outside"
    output=$(inside "$program" generate /tmp/run --prompt "all " --max-tokens 8 --greedy) || fail "$name: generate failed"
    [[ $output == "all "* ]] || fail "$name: generate printed: $output"
    environment=(OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2)
    output=$(inside "$program" train /tmp/run.toml --out /tmp/mpi 2>&1) || code=$?
    environment=()
    [[ $code == 2 && $output == *"no MPI library was found"*libmpi.so.40* ]] ||
        fail "$name: a rank of mpirun without MPI ended with $code: $output"
    echo "   version, doctor, 5 steps on 2 ranks, a text, sentencepiece, and the reason when MPI is missing: well"
}

mkdir "$work/here"
make_root
for ((i = 0; i < 400; i++)); do echo "all together now, tutti."; done >"$root/tmp/text.txt"
cat >"$root/tmp/run.toml" <<'TOML'
model.preset = "llama-tiny"
data.train = ["/tmp/text.txt"]
[train]
steps = 5
seq_len = 64
global_batch = 8
micro_batch = 4
threads = 1
[log]
every = 1
TOML
tar -xzf "$archive" -C "$work/here" --strip-components=1
sed "s:/tmp/text.txt:$root/tmp/text.txt:" "$root/tmp/run.toml" >"$work/here/run.toml"
"$work/here/bin/tutti" train "$work/here/run.toml" --ranks 2 --out "$work/here/run" >/dev/null
here=$(losses "$work/here/run")
cp "$(dirname "${BASH_SOURCE[0]}")/../src/tutti/text/testdata/sentencepiece.model" "$root/tmp/"
"$work/here/bin/tutti" data tokenize "$root/tmp/text.txt" --tokenizer "$root/tmp/sentencepiece.model" --out "$work/here/tokens" >/dev/null
[[ $(wc -w <<<"$here") == 5 ]] || fail "the program of the archive logged: $here"

tar -xzf "$archive" -C "$root/opt"
directory=$(basename "$archive" .tar.gz)
tries archive "/opt/$directory/bin/tutti"
rm -rf "${root:?}/opt/$directory"

# dpkg of the bare system where it has one, else this machine's.
install_debian() {
    if [[ -x $root/usr/bin/dpkg ]]; then
        cp "$debian" "$root/tmp/tutti.deb"
        inside dpkg "$@"
        return
    fi
    mkdir -p "$root/var/lib/dpkg/"{info,updates,triggers}
    if [[ ! -f $root/var/lib/dpkg/status ]]; then
        dpkg -s libc6 >"$root/var/lib/dpkg/status"
        touch "$root/var/lib/dpkg/info/libc6:amd64.list"
    fi
    unshare "${as_root[@]}" --mount dpkg --log=/dev/null --root="$root" "${@/\/tmp\/tutti.deb/$debian}"
}
install_debian -i /tmp/tutti.deb >/dev/null
tries "Debian package" tutti
for file in share/man/man1/tutti.1 share/bash-completion/completions/tutti share/zsh/vendor-completions/_tutti \
    share/fish/vendor_completions.d/tutti.fish share/doc/tutti/LICENSE share/doc/tutti/THIRD_PARTY share/tutti/grafana/tutti.json lib/tutti/libtutti_sentencepiece.so; do
    [[ -s $root/usr/$file ]] || fail "the Debian package has no $file"
done
install_debian -r tutti >/dev/null
[[ ! -e $root/usr/bin/tutti && ! -e $root/usr/share/doc/tutti ]] || fail "dpkg -r left files of the Debian package"

python3 -m venv "$work/venv"
pip() { "$work/venv/bin/pip" --quiet --disable-pip-version-check --no-cache-dir "$@"; }
pip install --no-index "$wheel"
echo "== wheel: $(env -i "$work/venv/bin/tutti" version)"
env -i "$work/venv/bin/tutti" train "$work/here/run.toml" --ranks 2 --out "$work/here/wheel" >/dev/null
env -i "$work/venv/bin/tutti" data tokenize "$root/tmp/text.txt" --tokenizer "$root/tmp/sentencepiece.model" \
    --out "$work/here/wheel_tokens" >/dev/null
cmp "$work/here/tokens.bin" "$work/here/wheel_tokens.bin" || fail "wheel: other tokens"
[[ $(losses "$work/here/wheel") == "$here" ]] || fail "wheel: the losses are $(losses "$work/here/wheel"), not $here"
pip check
begin=$SECONDS
(cd "$work" && env -i "$work/venv/bin/tutti" init --demo >"$work/demo.log" 2>&1) || fail "tutti init --demo: $(cat "$work/demo.log")"
grep -q "^a sample:" "$work/demo.log" || fail "tutti init --demo printed no sample: $(cat "$work/demo.log")"
echo "   tutti init --demo: a sample after $((SECONDS - begin)) s"
env -i HOME="$work" "$work/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/../python/test_tutti.py" "$work/venv/bin/tutti" 2>"$work/module.log" ||
    fail "the module: $(cat "$work/module.log")"
[[ -s $work/venv/share/man/man1/tutti.1 ]] || fail "the wheel left no manual page"
pip uninstall --yes tutti-train
[[ ! -e $work/venv/bin/tutti && ! -e $work/venv/share/man/man1/tutti.1 ]] || fail "pip uninstall left files of the wheel"
echo "   pip install, 5 steps on 2 ranks, pip uninstall: well"
