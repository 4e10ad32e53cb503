#!/usr/bin/env python3
"""Makes a Python wheel of an installed program: scripts/make_wheel.py STAGE VERSION GLIBC OUT.

STAGE: what `cmake --install --prefix STAGE` left: bin/tutti, share/. VERSION: of the project. GLIBC: the version that the
program needs, such as 2.35, which becomes the platform tag (PEP 600). OUT: the directory for the wheel, whose path is
printed. pip puts the program into the environment's bin/, the manual page and the completions below its share/ (PEP 427:
NAME.data/scripts and NAME.data/data), and the module of python/tutti into site-packages. The distribution is
tutti-train: another project has the name tutti on PyPI. The same input gives the same bytes.
"""

import base64
import hashlib
import pathlib
import sys
import zipfile


NAME = "tutti_train"  # of the distribution, as file names spell it


def metadata(version, project):
    readme = (project / "README.md").read_text()
    return (
        "Metadata-Version: 2.1\n"
        "Name: tutti-train\n"
        f"Version: {version}\n"
        "Summary: Trains large neural networks on many devices at once: one program, and a module that calls it\n"
        "License: Apache-2.0\n"
        "Classifier: Environment :: Console\n"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence\n"
        "Requires-Python: >=3.8\n"
        "Description-Content-Type: text/markdown\n"
        f"\n{readme}"
    )


def record_of(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def members(stage, version, glibc, project):
    """-> [(name in the wheel, bytes, whether it is a program)], without RECORD."""
    data, info = f"{NAME}-{version}.data", f"{NAME}-{version}.dist-info"
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_x86_64"
    found = []
    for path in sorted(p for p in stage.rglob("*") if p.is_file()):
        name = path.relative_to(stage)
        if name.parts[0] == "bin":
            found.append((f"{data}/scripts/{name.name}", path.read_bytes(), True))
        elif name.parts[:3] == ("share", "doc", "tutti"):
            found.append((f"{info}/licenses/{name.name}", path.read_bytes(), False))
        else:
            found.append((f"{data}/data/{name}", path.read_bytes(), False))
    for path in sorted((project / "python" / "tutti").glob("*.py")):
        found.append((f"tutti/{path.name}", path.read_bytes(), False))
    if not any(program for _, _, program in found):
        sys.exit(f"make_wheel.py: {stage} has no bin/tutti; required: a directory that cmake --install filled")
    wheel = f"Wheel-Version: 1.0\nGenerator: tutti scripts/make_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n"
    found.append((f"{info}/METADATA", metadata(version, project).encode(), False))
    found.append((f"{info}/WHEEL", wheel.encode(), False))
    return found, f"{info}/RECORD", f"{NAME}-{version}-{tag}.whl"


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    stage, version, glibc, out = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
    found, record_name, file_name = members(stage, version, glibc, pathlib.Path(__file__).parent.parent)
    record = "".join(record_of(name, data) for name, data, _ in found) + f"{record_name},,\n"
    with zipfile.ZipFile(out / file_name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data, program in found + [(record_name, record.encode(), False)]:
            entry = zipfile.ZipInfo(name)  # of 1980-01-01
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            wheel.writestr(entry, data)
    print(out / file_name)


if __name__ == "__main__":
    main()
