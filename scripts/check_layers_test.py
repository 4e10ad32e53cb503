#!/usr/bin/env python3
"""Breaks each rule of check_layers.py in a small tree of its own and expects exactly that complaint."""

import pathlib
import tempfile
import unittest

import check_layers

LAYERS = "# comment\nbase:\nspec: base\ntensor: base\n"
CMAKE = ("tutti_room(base)\n"
         "tutti_room(spec DEPENDS base LIBRARIES PkgConfig::tomlplusplus)\n"
         "tutti_room(tensor DEPENDS base  # a call may go over lines\n"
         "           LIBRARIES $<$<BOOL:${TUTTI_ONEDNN}>:DNNL::dnnl>)\n")


class CheckLayers(unittest.TestCase):
    def problems(self, files, layers=LAYERS, cmake=CMAKE, rooms=None):
        if rooms is None:
            rooms = [line.split(":")[0] for line in layers.splitlines() if ":" in line]
        table = "".join(f"| group | `{room}` what it is for |\n" for room in rooms)
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {"layers.txt": layers, "CMakeLists.txt": cmake, "docs/architecture.md": table, **files}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            found = check_layers.check_tree(root)[0]
        return [problem.replace(f"{root}/", "") for problem in found]

    def expect(self, start, part, files, **inputs):
        found = self.problems(files, **inputs)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(start), found[0])
        self.assertIn(part, found[0])

    def test_a_good_tree_passes(self):
        self.assertEqual(self.problems({
            "src/tutti/base/error.h": "#include <string>\n",
            "src/tutti/spec/toml.cpp": '#include <toml++/toml.h>\n#include "tutti/base/error.h"\n',
            "src/tutti/spec/parse_test.cpp": "#include <gtest/gtest.h>\n",
            "src/tutti/spec/testing/contains.h": "#include <gtest/gtest.h>\n",
            "src/tutti/tensor/gemm.cpp": "#include <dnnl.hpp>\n",
        }), [])

    def test_a_room_that_the_table_lacks(self):
        self.expect("docs/architecture.md:1:", "what `spec` is for", {}, rooms=["base", "tensor"])

    def test_an_edge_that_is_not_allowed(self):
        self.expect("src/tutti/base/a.cpp:2:", "room `base` includes \"tutti/spec/b.h\"",
                    {"src/tutti/base/a.cpp": '\n#include "tutti/spec/b.h"\n'})

    def test_an_edge_between_sisters(self):
        self.expect("src/tutti/tensor/sub/a.h:1:", "allows it: base",
                    {"src/tutti/tensor/sub/a.h": '#  include "tutti/spec/b.h"\n'})

    def test_a_room_that_does_not_exist(self):
        self.expect("src/tutti/base/a.h:1:", "`cloud` is not a room", {"src/tutti/base/a.h": '#include "tutti/cloud/x.h"\n'})
        self.expect("src/tutti/cloud/a.h:1:", "`cloud` is not a room", {"src/tutti/cloud/a.h": "\n"})

    def test_a_path_that_hides_its_room(self):
        self.expect("src/tutti/base/a.cpp:1:", "our headers are written", {"src/tutti/base/a.cpp": '#include "../spec/b.h"\n'})

    def test_the_emulated_gpu_has_doors(self):
        text = '#include "tests/cuda/emulation/api.h"\n'
        layers, cmake = "device:\n", "tutti_room(device)\n"
        self.assertEqual(self.problems({"src/tutti/device/cuda/runtime.h": text}, layers=layers, cmake=cmake), [])
        self.expect("src/tutti/device/a.h:1:", "our headers are written", {"src/tutti/device/a.h": text}, layers=layers,
                    cmake=cmake)

    def test_third_party_in_a_header(self):
        self.expect("src/tutti/tensor/a.h:1:", "in a header", {"src/tutti/tensor/a.h": "#include <dnnl.hpp>\n"})

    def test_third_party_in_a_room_that_is_not_linked_to_it(self):
        for header in ("dnnl.hpp", "mpi.h", "nccl.h", "cuda_runtime.h", "cudnn.h", "toml++/toml.h", "CLI/CLI.hpp",
                       "nlohmann/json.hpp", "xxhash.h"):
            self.expect("src/tutti/base/a.cpp:1:", f"<{header}>", {"src/tutti/base/a.cpp": f"#include <{header}>\n"})

    def test_a_large_header_outside_its_file(self):
        self.expect("src/tutti/spec/print.cpp:1:", "outside src/tutti/spec/toml.cpp; include tutti/spec/toml.h",
                    {"src/tutti/spec/print.cpp": "#include <toml++/toml.h>\n"})

    def test_googletest_outside_a_test(self):
        self.expect("src/tutti/base/a.cpp:1:", "outside a *_test.cpp", {"src/tutti/base/a.cpp": "#include <gtest/gtest.h>\n"})

    def test_code_of_tests_outside_a_test(self):
        self.expect("src/tutti/spec/a.cpp:1:", "outside a *_test.cpp",
                    {"src/tutti/spec/a.cpp": '#include "tutti/base/testing/b.h"\n'})

    def test_layers_that_go_up(self):
        self.expect("layers.txt:1:", "only rooms above its line", {}, layers="base: spec\nspec: base\n",
                    cmake="tutti_room(base DEPENDS spec)\ntutti_room(spec DEPENDS base)\n")

    def test_cmake_that_does_not_link_an_allowed_room(self):
        self.expect("CMakeLists.txt:2:", "do not reach", {}, layers="base:\nspec: base\n",
                    cmake="tutti_room(base)\ntutti_room(spec)\n")

    def test_inputs_that_cannot_be_read(self):
        with self.assertRaises(check_layers.InputError):
            self.problems({}, layers="base spec\n")
        with self.assertRaises(check_layers.InputError):
            self.problems({}, cmake="project(x)\n")


if __name__ == "__main__":
    unittest.main()
