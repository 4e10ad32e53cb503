// kernels/attention_choice.h: how a run computes attention on a GPU ([train] attention), what it found out, and the
// file of measured times, which `tutti bench attention --tune` writes and a run reads ([train] attention_tuning).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/kernels/measured_on.h"

namespace tutti::kernels {

struct TunedAttention {
    std::string text;  // "backward of q (4, 4096, 32, 128) and 8 heads of 4096 keys in bf16, causal", for readers
    std::map<std::string, double> seconds;  // the median, by the name of the kernels
};

struct AttentionTuning : MeasuredOn {  // library: cuDNN with its version; "": there was none
    // Keyed by everything that the time of a request depends on, but for strides.
    std::map<std::vector<int64_t>, TunedAttention> requests;
    std::map<std::vector<int64_t>, std::string> missed;  // requests without an entry, with their texts
    // If true, a request without an entry is measured at its first use, which waits for the GPU.
    bool measures = false;

    std::string to_json() const;  // the file's text, without the two members above
};
AttentionTuning read_attention_tuning(const std::string& path, const MeasuredOn& here);  // errors: read_tuning()

// Of one rank.
struct AttentionChoice {
    std::string kernels = "own";                // as [train] attention
    std::unique_ptr<AttentionTuning> tuning;    // of "fastest"; null in a rehearsal
    std::map<std::string, std::string> others;  // requests that other kernels than the first asked for computed, and
                                                // why, each a sentence; by kernel, type, head dim and reason

    bool asks_library() const { return kernels == "cudnn" || kernels == "fastest"; }
};

}  // namespace tutti::kernels
