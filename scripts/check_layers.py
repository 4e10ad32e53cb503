#!/usr/bin/env python3
"""Checks the includes of src/tutti against layers.txt and CMakeLists.txt. Called by scripts/test.sh and by ctest.

Rules, each printed with file:line where it is broken:
  1. A room includes only itself and the rooms that layers.txt allows it.
  2. layers.txt goes bottom to top: a room names only rooms above its own line, and CMake links each of them.
  3. Our headers are included by their full path ("tutti/ROOM/..."), so that rule 1 can see them. The emulated GPU of
     tests/cuda/emulation has three doors: headers that include it when TUTTI_CUDA_EMULATED is defined.
  4. Third-party headers stand in .cpp and .cu files only, and only in rooms that CMake links to that library. One
     header is the door to the CUDA runtime: device/cuda/runtime.h.
  5. The large ones among them (HOMES below) stand in one file each; our own header beside that file is for the others.
  6. GoogleTest and the headers of folders `testing/` stand in *_test.cpp files and in folders `testing/` only.
  7. The table of rooms in docs/architecture.md names each room.
Exit code 0: all hold. 1: some do not. 2: the inputs cannot be read.
"""

import argparse
import pathlib
import re
import sys

# What an include starts with -> the CMake targets that provide it. Any one of them is enough.
THIRD_PARTY = {
    "dnnl": ("DNNL::dnnl", "dnnl::dnnl"),
    "oneapi/dnnl/": ("DNNL::dnnl", "dnnl::dnnl"),
    "mpi.h": ("MPI::MPI_CXX", "MPI::MPI_C"),
    "nccl": ("NCCL::nccl",),
    "cuda": ("CUDA::cudart", "CUDA::cudart_static"),
    "cublas": ("CUDA::cudart_static",),  # the toolkit's headers; the library is opened at run time
    "cudnn": ("CUDA::cudart_static",),  # likewise
    "toml++/": ("PkgConfig::tomlplusplus", "tomlplusplus::tomlplusplus"),
    "toml.hpp": ("PkgConfig::tomlplusplus", "tomlplusplus::tomlplusplus"),
    "sentencepiece_": ("PkgConfig::sentencepiece", "sentencepiece::sentencepiece"),
    "CLI/": ("CLI11::CLI11",),
    "CLI11.hpp": ("CLI11::CLI11",),
    "nlohmann/": ("nlohmann_json::nlohmann_json",),
    "json.hpp": ("nlohmann_json::nlohmann_json",),
    "xxhash": ("PkgConfig::xxhash",),
    "xxh3": ("PkgConfig::xxhash",),
    "fmt/": ("${TUTTI_FMT}",),
    "omp.h": ("OpenMP::OpenMP_CXX",),
}
# What an include starts with -> the one file that may have it: headers that cost seconds of each file that includes them.
HOMES = {
    "nlohmann/": "src/tutti/base/json.cpp",
    "CLI/": "src/tutti/cli/command.cpp",
    "toml++/": "src/tutti/spec/toml.cpp",
}
DOORS = {"src/tutti/device/cuda/runtime.h"}
EMULATION = "tests/cuda/emulation/"
EMULATION_DOORS = {"src/tutti/device/cuda/runtime.h", "src/tutti/device/cuda/launch.h", "src/tutti/kernels/cuda/element.h"}
SUFFIXES = {".h", ".hpp", ".cuh", ".cpp", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ROOM_CALL = re.compile(r"^[ \t]*tutti_room\(\s*(\w+)([^)]*)\)", re.MULTILINE)


class InputError(Exception):
    """layers.txt or CMakeLists.txt cannot be read."""


def read_layers(path):
    """-> ({room: set of allowed rooms}, [problems]). The order of the lines is the order of the layers."""
    allowed, problems = {}, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        room, colon, edges = line.partition(":")
        if not colon:
            raise InputError(f"{path}:{number}: a line is `room: the rooms it may include`, got `{line}`")
        room = room.strip()
        if room in allowed:
            problems.append(f"{path}:{number}: room `{room}` is listed twice")
        for edge in edges.split():
            if edge not in allowed:
                problems.append(f"{path}:{number}: `{room}` may include only rooms above its line; `{edge}` is not")
        allowed[room] = set(edges.split())
    return allowed, problems


def read_cmake(path):
    """-> {room: (line, set of rooms reached through DEPENDS, set of library targets of its own)}."""
    rooms = {}
    text = re.sub(r"#.*", "", path.read_text())
    for call in ROOM_CALL.finditer(text):
        number = text.count("\n", 0, call.start(1)) + 1
        words, group = {"DEPENDS": [], "LIBRARIES": []}, None
        for word in call.group(2).split():
            if word in words:
                group = words[word]
            elif group is not None:
                # $<$<BOOL:${TUTTI_ONEDNN}>:DNNL::dnnl> is linked when the option is on: the target is what counts here.
                group.append(re.sub(r"^.*>:(.+)>$", r"\1", word))
        reached = set(words["DEPENDS"])
        for room in words["DEPENDS"]:
            if room in rooms:
                reached |= rooms[room][1]
        rooms[call.group(1)] = (number, reached, set(words["LIBRARIES"]))
    if not rooms:
        raise InputError(f"{path}: required: lines `tutti_room(NAME ...)`, found none")
    return rooms


def targets_of(header):
    for start, targets in THIRD_PARTY.items():
        if header.startswith(start):
            return targets
    return None


def check_file(path, name, room, allowed, libraries):
    """Problems of one file. `name` is the path as printed."""
    problems = []
    is_test = path.name.endswith("_test.cpp") or "testing" in path.parts[-3:-1]
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        place = f"{name}:{number}: "
        if header.startswith("tutti/"):
            target = header.split("/")[1]
            if "/testing/" in header and not is_test:
                problems.append(f"{place}includes \"{header}\" outside a *_test.cpp file or a folder testing/")
            if target not in allowed:
                problems.append(f"{place}includes \"{header}\": `{target}` is not a room of layers.txt")
            elif target != room and target not in allowed[room]:
                may = " ".join(r for r in allowed if r in allowed[room]) or "no other room"
                problems.append(f"{place}room `{room}` includes \"{header}\"; layers.txt allows it: {may}")
            continue
        targets = targets_of(header)
        if targets:
            if path.suffix not in (".cpp", ".cu") and name not in DOORS:
                problems.append(f"{place}third-party header <{header}> in a header; move it into a .cpp or .cu file")
            home = next((file for start, file in HOMES.items() if header.startswith(start)), name)
            if name != home:
                problems.append(f"{place}<{header}> outside {home}; include {home.removeprefix('src/')[:-4]}.h")
            elif not libraries.intersection(targets):
                problems.append(f"{place}room `{room}` includes <{header}>, but CMakeLists.txt does not link it to "
                                f"{' or '.join(targets)}")
        elif header.startswith(("gtest/", "gmock/")):
            if not is_test:
                problems.append(f"{place}<{header}> outside a *_test.cpp file or a folder testing/")
        elif quote == '"' and not (header.startswith(EMULATION) and name in EMULATION_DOORS):
            problems.append(f"{place}includes \"{header}\"; our headers are written \"tutti/ROOM/...\"")
    return problems


def check_tree(root):
    """-> (list of problems, number of files read)."""
    allowed, problems = read_layers(root / "layers.txt")
    rooms = read_cmake(root / "CMakeLists.txt")
    for room, (number, reached, _) in rooms.items():
        if room not in allowed:
            problems.append(f"CMakeLists.txt:{number}: room `{room}` is not in layers.txt")
            continue
        for missing in sorted(allowed[room] - reached):
            problems.append(f"CMakeLists.txt:{number}: layers.txt lets `{room}` include `{missing}`, but its DEPENDS do "
                            "not reach that room")
    rows = [line for line in (root / "docs" / "architecture.md").read_text().splitlines() if line.startswith("|")]
    for room in allowed:
        if not any(f"`{room}` " in row for row in rows):
            problems.append(f"docs/architecture.md:1: no row of the table of rooms says what `{room}` is for")
    source = root / "src" / "tutti"
    files = sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES)
    for path in files:
        name = path.relative_to(root).as_posix()
        room = path.relative_to(source).parts[0]
        if room not in allowed:
            problems.append(f"{name}:1: `{room}` is not a room of layers.txt")
        elif room not in rooms:
            problems.append(f"{name}:1: room `{room}` has no tutti_room() line in CMakeLists.txt")
        else:
            problems += check_file(path, name, room, allowed, rooms[room][2])
    return problems, len(files)


def main():
    parser = argparse.ArgumentParser(description="Checks the includes of src/tutti against layers.txt and CMakeLists.txt.")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent,
                        help="the tree to check (default: the one this script is in)")
    root = parser.parse_args().root
    try:
        problems, count = check_tree(root)
    except (InputError, OSError) as error:
        print(f"check_layers: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem)
    if problems:
        print(f"check_layers: {len(problems)} broken rules in {count} files", file=sys.stderr)
        return 1
    print(f"check_layers: {count} files, every include is an allowed one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
