#!/usr/bin/env bash
# Makes the packages: a tar archive, a Debian package and a Python wheel of one program that needs glibc alone
# (docs/install.md). They are in build/package/packages; their sizes and SHA-256 are printed last.
#
#   scripts/package.sh                     with CUDA where there is nvcc
#   scripts/package.sh --test              also installs and runs each of them in a bare system (scripts/test_package.sh)
#   scripts/package.sh -D...               any definition for CMake, such as -DTUTTI_CUDA=OFF or
#                                          -DTUTTI_CUDA_ARCHITECTURES="80-real;90a-real"
#
# TUTTI_JOBS: parallel compilers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=no
definitions=()
while (($#)); do
    case "$1" in
        --test) tests=yes ;;
        -D?*) definitions+=("$1") ;;
        -h | --help)
            sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        *)
            echo "package.sh: unknown argument '$1'; there are --test and -DNAME=VALUE" >&2
            exit 2
            ;;
    esac
    shift
done
newest_glibc=2.36 # Debian 12's
build=build/package
packages=$build/packages

needed_by_test=()
if [[ $tests == yes ]]; then needed_by_test=(python3-venv debootstrap); fi
scripts/install_packages.sh "${needed_by_test[@]}"
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cuda=(-DTUTTI_CUDA=OFF)
if command -v "${CUDACXX:-nvcc}" >/dev/null; then cuda=(-DTUTTI_CUDA=ON); fi
echo "== configure and compile"
cmake --preset package -DTUTTI_WERROR=ON "${launcher[@]}" "${cuda[@]}" "${definitions[@]}"
cmake --build --preset package --parallel "${TUTTI_JOBS:-$(nproc)}"

glibc=$(scripts/check_glibc.sh $build/tutti $newest_glibc)
version=$($build/tutti --version)
version=${version#tutti }
echo "== tutti $version needs glibc $glibc and no other library"

rm -rf $packages $build/wheel
cmake --install $build --component program --strip --prefix $build/wheel >/dev/null
for library in $build/wheel/lib/tutti/*.so* $build/wheel/lib/tutti/gcc/*.so*; do
    scripts/check_glibc.sh "$library" $newest_glibc libstdc++.so.6 libgcc_s.so.1 libsentencepiece.so.0 >/dev/null
done
scripts/check_runpath.sh $build/wheel >/dev/null
(cd $build && cpack -D CPACK_DEBIAN_PACKAGE_DEPENDS="libc6 (>= $glibc)" >cpack.log) || { cat $build/cpack.log >&2 && exit 1; }
scripts/make_wheel.py $build/wheel "$version" "$glibc" $packages >/dev/null
rm -rf $packages/_CPack_Packages

if [[ $tests == yes ]]; then scripts/test_package.sh $packages; fi

echo "== made in $packages"
(cd $packages && for file in *; do
    printf '%9d bytes  %s  %s\n' "$(stat -c %s "$file")" "$(sha256sum "$file" | cut -d ' ' -f 1)" "$file"
done)
