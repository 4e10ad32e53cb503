#!/usr/bin/env python3
"""Reads the machine code of the CUDA kernels of a build: values that stay in registers; loads and stores of 16 bytes
where a kernel is meant to have them; no load that may miss another block's store; and in kernels with products of warp
groups, that these run one beside the other, that fences stand between stores of threads and the hardware units that
read them, and that barriers stand where all threads of a warp are together. The compiler gives up most of these without
a word.

    scripts/check_sass.py CUOBJDUMP BUILD     BUILD: a build directory with -DTUTTI_CUDA=ON

Exit code 0: all is as the tables below say; 1: it is not, or a kernel of the tables was not found. CUOBJDUMP and
nvdisasm beside it come with the CUDA toolkit and with the Python packages nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

# Kernels with values in local memory: the pattern of the name, the most loads and stores of local memory, why.
LOCAL = [
    (r"copy_kernel<", 46, "shapes and strides indexed by dim"),
    (r"table_kernel$", 5, "sine and cosine of large angles, once a model"),
    (r"^forward_kernel<ForwardSizes<", 32, "255 registers; the kernels for Hopper take its place there"),
    (r"^backward_kernel<BackwardSizes<", 52, "likewise; head dims of 256, which no kernel for Hopper takes, spill most"),
    (r"^delta_rule_kernel<\w+, (true|false)>", 20, "places of tiles, once a chunk"),
    (r"^backward_kernel<8, false, (bf16|f16|float)>", 4, "attention without tensor cores"),
    (r"tree_kernel<", 10, "a partial sum for each level of the tree over ranks"),
]
# Kernels that are limited by memory: the pattern of the name with the width as its argument, the most loads narrower than
# 16 bytes (indices, statistics of rows, targets of sums), the most narrow stores (results by row or column).
WIDE = [
    (r"rope_kernel<[84],", 1, 0),
    (r"embedding_kernel<[84],", 1, 0),
    (r"embedding_backward_kernel<[84],", 20, 0),
    (r"gather_kernel<[84],", 1, 0),
    (r"delta_kernel<[84],", 0, 1),
    (r"norm_kernel<\w+, Team<\d>, [84],", 0, 2),
    (r"norm_input_kernel<\w+, Team<\d>, [84],", 2, 0),
    (r"norm_gradients_kernel<\w+, \d, [84],", 2, 0),
    (r"column_sums_kernel<[12], [84],", 14, 12),
    (r"dropout_kernel<[84],", 1, 0),
    (r"swiglu_kernel<\d, [84],", 0, 0),
    (r"swiglu_backward_kernel<\d, [84],", 0, 0),
    (r"cross_entropy_kernel<\S+, [84],", 50, 6),
    (r"word_kernel<", 0, 4),  # of f32 into 16 bits, 8 bytes each
]
# Kernels with products of warp groups: the pattern of the name, the products (HGMMA), how often the source starts some and
# waits for some. Where ptxas runs them one after the other (its notes C7510 to C7514), each has a start and a wait.
PRODUCTS = [
    (r"hopper_forward_kernel<HopperForward<64>", 24, 4, 4),
    (r"hopper_forward_kernel<HopperForward<128>", 32, 4, 4),
    (r"hopper_backward_kernel<HopperBackward<64>", 32, 7, 4),
    (r"hopper_backward_kernel<HopperBackward<128>", 32, 5, 4),
]
# Kernels that read constant tables of theirs through the cache that sees no stores of other blocks (LDG.CONSTANT).
CONSTANTS = [
    (r"^table_kernel$", "sine and cosine"),
    (r"^(update_stored_kernel<|muon_momentum_kernel)", "the numbers of 8-bit moments"),
]
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\S+\s+)?([A-Z][A-Z0-9_.]+)([^;]*)")


def kernels_of(cuobjdump, object_file):
    """[(name without namespaces and arguments, Counter of memory instructions, "LDG.128" by width, [(instruction,
    operands)])]"""
    environment = dict(os.environ, PATH=f"{pathlib.Path(cuobjdump).parent}:{os.environ['PATH']}")
    code = subprocess.run([cuobjdump, "-sass", object_file], capture_output=True, text=True, env=environment)
    if code.returncode != 0:
        sys.exit(f"check_sass.py: {cuobjdump} -sass {object_file}: {code.stderr.strip()}")
    found, counts, codes = [], [], []
    for line in code.stdout.splitlines():
        if function := re.search(r"Function : (\S+)", line):
            found.append(function.group(1))
            counts.append(collections.Counter())
            codes.append([])
        elif found and (instruction := INSTRUCTION.match(line)):
            codes[-1].append(instruction.groups())
            if memory := re.match(r"(LDG|STG|LDL|STL)\b(\S*)", instruction.group(1)):
                width = re.search(r"\.(U8|S8|U16|S16|64|128)\b", memory.group(2))
                counts[-1][memory.group(1) + "." + (width.group(1) if width else "32")] += 1
    names = subprocess.run(["c++filt"], input="\n".join(found), capture_output=True, text=True, check=True).stdout
    plain = []
    for name in names.splitlines():
        name = re.sub(r"\(anonymous namespace\)::|\b(tutti|kernels|cuda)::|\b_GLOBAL__N__\w*::|\bvoid ", "", name)
        name = name.replace("(Gate::Kind)", "")
        plain.append(re.sub(r"\((?!.*Part\)).*", "", name))
    return list(zip(plain, counts, codes))


def unordered(code):
    """Instructions that publish what hardware units would read too early: tiles are stored by STSM and STS.128, then
    published by a fence, and only then is another thread told, or a unit started."""
    stored = None
    for name, _ in code:
        if re.match(r"STSM|STS\.128", name):
            stored = name
        elif name.startswith("FENCE.VIEW.ASYNC"):
            stored = None
        elif stored and re.match(r"BAR\.(SYNC|ARV)|SYNCS\.ARRIVE|UBLK|UTMA(?!LDG)", name):
            yield f"{name} behind {stored} without FENCE.VIEW.ASYNC"
            stored = None


def apart(code):
    """Barriers of whole warps between BSSY and its BSYNC, where threads of a warp may be apart."""
    open_regions = set()
    for name, operands in code:
        region = operands.split(",")[0].strip()
        if name.startswith("BSSY"):
            open_regions.add(region)
        elif name.startswith("BSYNC"):
            open_regions.discard(region)
        elif open_regions and re.match(r"BAR\.|HGMMA|WARPGROUP\.(ARRIVE|DEPBAR)", name):
            yield f"{name} inside of {' '.join(sorted(open_regions))}"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    cuobjdump, build = sys.argv[1], pathlib.Path(sys.argv[2])
    root = pathlib.Path(__file__).parent.parent
    objects = [build / f"CMakeFiles/tutti_{room}_cuda.dir/{source.relative_to(root)}.o"
               for room, folder in (("kernels", "kernels/cuda"), ("comm", "comm/nccl"))
               for source in sorted((root / "src/tutti" / folder).glob("*.cu"))]
    kernels = [(o.stem, *k) for o in objects for k in kernels_of(cuobjdump, str(o))]
    problems, seen = [], collections.Counter()
    for file, name, count, code in kernels:
        if any(re.match(r"HGMMA|UBLK|UTMA", i) for i, _ in code):
            problems += [f"{file}: {name}: {found}" for found in [*unordered(code), *apart(code)]]
        stale = sum(i.startswith("LDG") and "CONSTANT" in i for i, _ in code)
        if stale and not any(re.search(pattern, name) for pattern, _ in CONSTANTS):
            problems.append(f"{file}: {name} has {stale} loads through the cache that sees no stores of other blocks")
        products = tuple(sum(i.startswith(kind) for i, _ in code) for kind in ("HGMMA", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR"))
        expected = next(((pattern, *rest) for pattern, *rest in PRODUCTS if re.search(pattern, name)), (None, 0, 0, 0))
        seen[expected[0]] += 1
        if products != expected[1:]:
            problems.append(f"{file}: {name} has {products} products, starts and waits, expected {expected[1:]}")
        local = sum(n for kind, n in count.items() if kind[:3] in ("LDL", "STL"))
        allowed = max((most for pattern, most, _ in LOCAL if re.search(pattern, name)), default=0)
        if local > allowed:
            problems.append(f"{file}: {name} has {local} loads and stores of local memory, at most {allowed} expected")
        for pattern, loads, stores in WIDE:
            if not re.search(pattern, name):
                continue
            seen[pattern] += 1
            for kind, most in (("LDG", loads), ("STG", stores)):
                narrow = sum(n for k, n in count.items() if k.startswith(kind) and k != kind + ".128")
                if narrow > most or (kind == "LDG" and count["LDG.128"] == 0):
                    problems.append(f"{file}: {name} has {narrow} {kind} narrower than 16 bytes, at most {most} expected, "
                                    f"and {count[kind + '.128']} of 16 bytes")
    problems += [f"no kernel matches {pattern}" for pattern, *_ in WIDE + PRODUCTS if not seen[pattern]]
    wide = sum(seen[pattern] for pattern, *_ in WIDE)
    print(f"{len(kernels)} kernels of {len(objects)} files, {wide} of them wide, {len(problems)} problems")
    for problem in problems:
        print(problem)
    sys.exit(1 if problems or not kernels else 0)


main()
