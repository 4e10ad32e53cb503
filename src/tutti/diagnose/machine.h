// diagnose/machine.h: what the host lets this process have, read from /proc, /sys and the limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::diagnose {

std::optional<double> cgroup_cpu_limit();  // cores; nullopt: none
std::vector<std::string> cpu_features();   // of those that Tutti or its GEMM engine uses: "avx2", "amx_bf16"

// nullopt: a small file in `directory` could be written, fsynced, renamed and removed, and its directory fsynced; else
// what failed.
std::optional<std::string> fsync_problem(const std::string& directory);

}  // namespace tutti::diagnose
