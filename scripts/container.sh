#!/usr/bin/env bash
# Makes a container image of the program without a daemon: an OCI archive that podman, docker and containerd load.
# The image has the archive of scripts/package.sh, the libraries of glibc, and nothing else; its entry point is tutti.
#
#   scripts/container.sh                    from build/package/packages, which scripts/package.sh makes
#   scripts/container.sh --test             also unpacks the image and trains in it, without network, and again by podman
#                                           where there is one
#
#   podman load -i build/package/packages/tutti-VERSION-oci.tar; podman run -v "$PWD:/work" tutti init --demo
#
# Needs umoci, a Debian package; --test needs unshare with user namespaces, or root.
# TUTTI_PODMAN: the container engine's call [podman], such as "podman --runtime=runc"; TUTTI_PODMAN_RUN: options of its
# `run`, such as "--ulimit nofile=1024:1024" where limits may not be raised.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

test=no
case "${1:-}" in
    "") ;;
    --test) test=yes ;;
    -h | --help)
        sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *)
        echo "container.sh: unknown argument '$1'; there is --test" >&2
        exit 2
        ;;
esac
packages=build/package/packages
archives=("$packages"/tutti-*-linux-x86_64.tar.gz)
[[ ${#archives[@]} == 1 && -f ${archives[0]} ]] || {
    echo "container.sh: required: one tutti-*.tar.gz in $packages; scripts/package.sh makes it" >&2
    exit 2
}
scripts/install_packages.sh umoci >/dev/null
version=$(basename "${archives[0]}" -linux-x86_64.tar.gz)
version=${version#tutti-}

work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{etc,tmp,usr,work,lib64,lib/x86_64-linux-gnu}
chmod 1777 "$root/tmp" && chmod 755 "$work" "$root"
tar -xzf "${archives[0]}" -C "$root/usr" --strip-components=1
echo 'root:x:0:0:root:/work:/usr/bin/tutti' >"$root/etc/passwd"
# The libraries of libc6 and the loader, without its tables of locales and character sets.
dpkg -L libc6:amd64 | grep -E '/[^/]*\.so\.[0-9]+$' | while IFS= read -r path; do
    case $path in
        */ld-linux-x86-64.so.2) cp -L "$path" "$root/lib64/" ;;
        */gconv/* | */audit/*) ;;
        *) cp -L "$path" "$root/lib/x86_64-linux-gnu/" ;;
    esac
done

# One layer; the times of its files are that of the archive, so the same archive gives the same image.
stamp=$(date --utc --reference="${archives[0]}" +%Y-%m-%dT%H:%M:%SZ)
find "$root" -exec touch --no-dereference --date="$stamp" {} +
image=$work/image
umoci init --layout "$image" && umoci new --image "$image:tutti"
umoci insert --rootless --image "$image:tutti" --history.created "$stamp" "$root" /
umoci config --image "$image:tutti" --created "$stamp" --history.created "$stamp" --config.entrypoint /usr/bin/tutti \
    --config.workingdir /work --config.env PATH=/usr/bin --config.env HOME=/work \
    --config.env NVIDIA_VISIBLE_DEVICES=all --config.env NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    --config.label org.opencontainers.image.title=tutti --config.label "org.opencontainers.image.version=$version"
umoci gc --layout "$image"
out=$packages/tutti-$version-oci.tar
tar --create --file="$out" --sort=name --owner=0 --group=0 --mtime="$stamp" --directory="$image" .

if [[ $test == yes ]]; then
    umoci unpack --rootless --image "$image:tutti" "$work/unpacked" >/dev/null
    files=$work/unpacked/rootfs
    mkdir -p "$files"/{proc,dev}
    as_root=()
    if ((EUID)); then as_root=(--map-root-user); fi
    # shellcheck disable=SC2016
    unshare "${as_root[@]}" --mount --pid --net --fork sh -c '
        mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" &&
        exec env -i PATH=/usr/bin:/usr/sbin HOME=/work chroot "$1" /usr/bin/tutti init --demo /work/first' sh "$files" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2 && exit 1; }
    grep -q "a sample:" "$work/log" || { cat "$work/log" >&2 && exit 1; }
    echo "== the image unpacked: tutti init --demo trains and prints a sample"
    read -ra podman <<<"${TUTTI_PODMAN:-podman}"
    if command -v "${podman[0]}" >/dev/null; then
        read -ra options <<<"${TUTTI_PODMAN_RUN:-}"
        mkdir "$work/volume"
        "${podman[@]}" load --quiet --input "$out" >/dev/null
        "${podman[@]}" run --rm --network none "${options[@]}" --volume "$work/volume:/work" tutti init --demo >"$work/log" 2>&1 ||
            { cat "$work/log" >&2 && exit 1; }
        grep -q "a sample:" "$work/log" || { cat "$work/log" >&2 && exit 1; }
        echo "== ${podman[0]} run: tutti init --demo trains and prints a sample"
    fi
fi
size=$(stat -c %s "$out")
echo "$size bytes  $(sha256sum "$out" | cut -d ' ' -f 1)  $out"
((size < 40000000)) || { echo "container.sh: the image is larger than 40 MB" >&2 && exit 1; }
