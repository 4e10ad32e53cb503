// examples/train_from_cpp: a C++ program that uses the installed library, with no Python and no command line of Tutti.
// Prints what training one preset needs at least: its parameters and the bytes of weights, gradients and AdamW moments.
#include <cstdint>
#include <cstdio>
#include <string>

#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/spec/model_spec.h"

int main(int argc, char** argv) {
    try {
        const std::string name = argc > 1 ? argv[1] : "llama-tiny";
        const tutti::spec::ModelSpec model = tutti::spec::preset(name);
        const int64_t parameters = tutti::spec::parameter_count(model);
        // fp32 master weight, gradient, and two moments.
        const int64_t bytes = 4 * parameters * tutti::size_of(tutti::DType::f32);
        std::printf("%s: %lld parameters, at least %.1f MiB to train in f32\n", name.c_str(),
                    static_cast<long long>(parameters), static_cast<double>(bytes) / (1 << 20));
        return 0;
    } catch (const tutti::Error& error) {
        std::fprintf(stderr, "train_from_cpp: %s\n", error.what());
        return error.exit_code();
    }
}
