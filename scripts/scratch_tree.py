"""A copy of the tree in a scratch folder, which scripts change and build: mutations of mutate_engine.py and mutate.py."""

import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


class ScratchTree:
    """Keeps its build, so that a second use compiles what has changed and nothing else."""

    def __init__(self, folder, build="build/work", jobs=2, tests=False, warnings=False):
        self.folder, self.where, self.jobs = folder.resolve(), build, jobs
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                                   capture_output=True, text=True).stdout.split():
            self.restore(name)
        if not (self.folder / build / "build.ninja").exists():
            subprocess.run(["cmake", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTUTTI_CUDA=OFF",
                            f"-DTUTTI_TESTS={'ON' if tests else 'OFF'}", f"-DTUTTI_WERROR={'ON' if warnings else 'OFF'}",
                            "-DTUTTI_UNITY_BUILD=OFF", "-DTUTTI_PRECOMPILED_HEADERS=OFF",
                            *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else [])],
                           cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def restore(self, name):
        """A file as it is in the tree."""
        source, target = ROOT / name, self.folder / name
        if source.exists() and not (target.exists() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def try_build(self, *targets):
        """None, or the compiler's output where it refuses: all of it, since what does not depend on a refused file is built."""
        done = subprocess.run(["ninja", "-k0", "-C", self.where, f"-j{self.jobs}", *targets], cwd=self.folder, capture_output=True, text=True)
        return None if done.returncode == 0 else done.stdout

    def build(self, *targets):
        if refusal := self.try_build(*targets):
            raise SystemExit(refusal[-4000:])
