// The card as a person sees it: a whole one, line by line, and what long or odd values do to its frame.
#include "tutti/rehearsal/card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::rehearsal {
namespace {

models::ModelCounts counts_of(const spec::RunSpec& run) {
    return models::counts_of(models::outline(run.model), run.train.seq_len, run.recompute.policy);
}

struct Card {
    spec::RunSpec run;
    Rehearsal of;

    std::string text() const { return render_card(run, of); }
};

// GPT-2 small with a memory plan of round numbers.
Card sample_card() {
    Card card;
    card.run.model = spec::preset("gpt2-124m");
    card.run.train.seq_len = 1024;
    card.run.train.global_batch = 8;
    card.run.train.micro_batch = 4;
    card.run.train.steps = 100;
    card.run.optimizer.clip = 0;
    card.of.machine = "a laptop";
    card.of.memory.at_peak[Purpose::weights] = 64 << 20;
    card.of.memory.at_peak[Purpose::optimizer] = 192 << 20;
    card.of.memory.peak_place = "forward of head";
    card.of.counts = counts_of(card.run);
    return card;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

int64_t columns_of(const std::string& line) {
    return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

void expect_frame(const std::string& text) {
    ASSERT_TRUE(text.ends_with('\n'));
    for (const std::string& line : lines_of(text)) EXPECT_EQ(columns_of(line), 100) << line;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The lines without their frame, which is checked, and without the blanks or the rule that fill them.
std::string contents_of(const std::string& text) {
    expect_frame(text);
    std::string contents;
    for (std::string line : lines_of(text)) {
        const std::string begin = line.substr(0, 3), side = "│";
        EXPECT_EQ(begin == side, line.ends_with(side)) << line;
        line = line.substr(3, line.size() - 6);
        const std::string dash = "─";
        while (begin != side && line.ends_with(dash)) line.resize(line.size() - dash.size());
        line.erase(line.find_last_not_of(' ') + 1);
        contents += (begin == side ? line.substr(1) : line) + '\n';
    }
    return contents;
}

// 797.8 and 854.4 MFLOP: worked out in flops_test.cpp; times 8192: 6.54 TFLOP. A bar has up to 59 columns.
TEST(Card, WholeCard) {
    const std::string expected =
        "─ plan: gpt2-124m\n"
        "model          gpt2, 12 layers, width 768, 12 heads of 64, ffn 3072, vocab 50257, tied\n"
        "parameters     124.4 M\n"
        "FLOPs          797.8 MFLOP per token, forward and backward, causal attention (854.4 MFLOP full)\n"
        "step           8.19 k tokens: 8 sequences of 1024, 2 microbatches of 4, 6.54 TFLOP\n"
        "run            100 steps, 819.2 k tokens\n"
        "mesh           1 rank\n"
        "precision      bf16, f32 master weights and gradients\n"
        "recompute      none\n"
        "optimizer      adamw, lr 0.0003 cosine to 3e-05, warm-up 20 steps, weight decay 0.1, no clipping\n"
        "tokenizer      bytes\n"
        "machine        a laptop\n"
        "─ memory, rehearsed\n"
        "weights           64.0 MiB   25.0 %  ███████████████\n"
        "gradients              0 B    0.0 %\n"
        "optimizer        192.0 MiB   75.0 %  ████████████████████████████████████████████\n"
        "activations            0 B    0.0 %\n"
        "communication          0 B    0.0 %\n"
        "workspace              0 B    0.0 %\n"
        "data                   0 B    0.0 %\n"
        "peak             256.0 MiB  in the forward of head\n"
        "\n";
    EXPECT_EQ(contents_of(sample_card().text()), expected);
}

TEST(Card, MeasuredBesidePredicted) {
    MemoryByPurpose measured;
    measured[Purpose::weights] = 64 << 20;
    measured[Purpose::optimizer] = 144 << 20;  // a quarter less
    measured[Purpose::workspace] = 2 << 20;    // predicted as nothing
    const std::string expected =
        "─ memory of a rank at its peak, after the first step\n"
        "                   rehearsed     measured   difference\n"
        "weights             64.0 MiB     64.0 MiB       +0.0 %\n"
        "gradients                0 B          0 B       +0.0 %\n"
        "optimizer          192.0 MiB    144.0 MiB      -25.0 %\n"
        "activations              0 B          0 B       +0.0 %\n"
        "communication            0 B          0 B       +0.0 %\n"
        "workspace                0 B     2.00 MiB   unforeseen\n"
        "data                     0 B          0 B       +0.0 %\n"
        "peak               256.0 MiB    210.0 MiB      -18.0 %\n"
        "\n";
    EXPECT_EQ(contents_of(render_measured(sample_card().of.memory, measured)), expected);
}

TEST(Card, LongLinesWrapInsideTheFrame) {
    Card card = sample_card();
    card.of.machine = "Some Vendor(R) Processor with a Long Name @ 3.00GHz " + std::string(150, 'x') + " end";
    card.run.model.preset = "/a/dir/ünïcödé " + std::string(120, 'm');
    std::string flat = card.text();
    expect_frame(flat);
    for (const char* drop : {" ", "\n", "│"})
        for (size_t at = flat.find(drop); at != std::string::npos; at = flat.find(drop))
            flat.erase(at, std::string(drop).size());
    EXPECT_TRUE(contains(flat, std::string(150, 'x') + "end"));  // nothing is cut away
    EXPECT_TRUE(contains(flat, std::string(120, 'm')));
}

TEST(Card, SaysWhatTheRunIs) {
    spec::RunSpec run;
    run.model = spec::preset("llama3.2-1b");
    run.train.seq_len = 2048;
    run.train.global_batch = 16;
    run.train.micro_batch = 2;
    run.recompute.policy = "sqrt";
    const std::string text = render_card(run, {.machine = "8 threads", .counts = counts_of(run)});
    expect_frame(text);
    for (const char* part :
         {"plan: llama3.2-1b", "llama, 16 layers, width 2048, 32 heads of 64 (8 kv), ffn 8192, vocab 128256, tied",
          "1.24 B", "32.8 k tokens: 16 sequences of 2048, 8 microbatches of 2", "with what is recomputed",
          "sqrt: segments of 4 blocks", "lr 0.0003 cosine to 3e-05", "clip 1", "8 threads"})
        EXPECT_TRUE(contains(text, part)) << part << "\n" << text;

    run.recompute.policy = "none";
    run.model = spec::preset("mlp-8192");
    run.model.preset = "";
    run.precision.compute = "f32";
    const std::string mlp = render_card(run, {.counts = counts_of(run)});
    EXPECT_TRUE(contains(mlp, "plan: mlp "));
    EXPECT_TRUE(contains(mlp, "3.22 GFLOP per token, forward and backward "));  // 6 * 8 * 8192^2
    EXPECT_TRUE(contains(mlp, "f32 throughout"));

    run.model = spec::preset("llama-tiny");
    run.train.global_batch = 2;
    run.precision.recipe = "block";
    run.precision.bf16_last = 0;
    const std::string codes = render_card(run, {.counts = counts_of(run)});
    EXPECT_TRUE(contains(codes, "f32, 8-bit products (block) in 3 of 4 blocks")) << codes;
    EXPECT_TRUE(contains(codes, ", 1 microbatch of 2, ")) << codes;
    EXPECT_FALSE(contains(mlp, "attention"));
    EXPECT_FALSE(contains(mlp, "recomputed"));
}

// What a rank sends is the sum over its groups; one operation needs none.
TEST(Card, SaysWhatARankSendsInAll) {
    Card card = sample_card();
    card.of.ranks = 4;
    card.of.communication = {{"tp", {0, 1}, comm::Kind::all_reduce, {8, 4 << 20, 4 << 20}}};
    EXPECT_FALSE(contains(card.text(), "in all"));
    card.of.communication.push_back({"dp", {0, 2}, comm::Kind::all_gather, {2, 4 << 20, 2 << 20}});
    const std::string text = card.text();
    expect_frame(text);
    const size_t at = text.find("in all");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_TRUE(contains(text.substr(at, 100), " 6.00 MiB sent")) << text;
}

}  // namespace
}  // namespace tutti::rehearsal
