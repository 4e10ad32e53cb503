// The list of cases is only as good as the errors that it detects: each entry of a wrong table below has one small,
// plausible mistake, and at least one case must see it in every type that the mistake can occur in.
#include <algorithm>
#include <utility>
#include <vector>

#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

View without_last(View x) {
    if (x.shape[-1] > 16) --x.shape[-1];
    return x;
}

TEST(KernelCasesNotice, ATailThatIsLeftOut) {
    KernelTable wrong = reference_table();
    wrong.gelu_forward = [](const Stream& s, View x, View y) {
        reference_table().gelu_forward(s, without_last(x), without_last(y));
    };
    wrong.sums_of_squares = [](const Stream& s, View x, View sums) {
        reference_table().sums_of_squares(s, without_last(x), sums);
    };
    wrong.exact_sum = [](const Stream& s, View x, View words) {
        reference_table().exact_sum(s, without_last(x), words);
    };
    expect_noticed(wrong, "gelu_forward");
    EXPECT_TRUE(noticed(wrong, "sums_of_squares", "("));
    EXPECT_TRUE(noticed(wrong, "exact_sum", "f32 ("));
}

TEST(KernelCasesNotice, AWriteBehindTheEnd) {
    KernelTable wrong = reference_table();
    wrong.fill = [](const Stream& s, View y, float value) {
        ++y.shape[0];
        reference_table().fill(s, y, value);
    };
    expect_noticed(wrong, "fill");
}

TEST(KernelCasesNotice, ASumThatForgetsOneTerm) {
    KernelTable wrong = reference_table();
    wrong.gemm = [](const Stream& s, const Gemm& g) {
        Gemm shorter = g;
        int64_t& K = shorter.a.shape[g.transpose_a ? 0 : 1];
        if (K > 200) --K;  // only the longest sums, where tolerances are widest
        reference_table().gemm(s, shorter);
    };
    expect_noticed(wrong, "gemm");
}

TEST(KernelCasesNotice, AnEpilogueThatKeepsNothingAndOneOfTheWrongNumber) {
    KernelTable wrong = reference_table();
    wrong.gemm = [](const Stream& s, const Gemm& g) {
        Gemm forgets = g;
        if (g.epilogue == Epilogue::swiglu) forgets.x = {};
        reference_table().gemm(s, forgets);
    };
    expect_noticed(wrong, "gemm");
    wrong.gemm = [](const Stream& s, const Gemm& g) {
        Gemm other = g;
        if (g.epilogue == Epilogue::gelu_backward) other.epilogue = Epilogue::none;
        reference_table().gemm(s, other);
    };
    expect_noticed(wrong, "gemm");
}

TEST(KernelCasesNotice, AccumulationThatOverwrites) {
    KernelTable wrong = reference_table();
    wrong.bias_backward = [](const Stream& s, View dy, View db) {
        reference_table().fill(s, db, 0);
        reference_table().bias_backward(s, dy, db);
    };
    expect_noticed(wrong, "bias_backward");
}

TEST(KernelCasesNotice, AnInPlaceInput) {
    KernelTable wrong = reference_table();
    wrong.relu_forward = [](const Stream& s, View x, View y) {
        reference_table().relu_forward(s, x, x);
        reference_table().cast(s, x, y);
    };
    expect_noticed(wrong, "relu_forward");
}

TEST(KernelCasesNotice, AnEpsilonThatIsMissing) {
    KernelTable wrong = reference_table();
    wrong.norm_forward = [](const Stream& s, const NormForward& f) {
        NormForward without = f;
        without.eps = 0;
        reference_table().norm_forward(s, without);
    };
    expect_noticed(wrong, "norm_forward");
}

// x for what x + residual was rounded to; a gradient that overwrites what it should be added to.
TEST(KernelCasesNotice, ANormThatForgetsWhatIsAdded) {
    KernelTable wrong = reference_table();
    wrong.norm_forward = [](const Stream& s, const NormForward& f) {
        NormForward alone = f;
        alone.residual = {};
        if (f.residual.defined()) reference_table().add(s, f.x, f.residual, f.sum);
        reference_table().norm_forward(s, alone);
    };
    wrong.norm_backward_input = [](const Stream& s, const NormBackward& b) {
        NormBackward alone = b;
        alone.add = {};
        reference_table().norm_backward_input(s, alone);
    };
    expect_noticed(wrong, "norm_forward");
    expect_noticed(wrong, "norm_backward_input");
}

// The gradients of weights that the pass of dx should add to.
TEST(KernelCasesNotice, ANormThatForgetsItsWeights) {
    KernelTable wrong = reference_table();
    wrong.norm_backward_input = [](const Stream& s, const NormBackward& b) {
        NormBackward alone = b;
        alone.dw = alone.db = {};
        reference_table().norm_backward_input(s, alone);
    };
    expect_noticed(wrong, "norm_backward_input");
}

TEST(KernelCasesNotice, ADiagonalOffByOne) {
    KernelTable wrong = reference_table();
    wrong.attention_forward = [](const Stream& s, const AttentionForward& a) {
        AttentionForward moved = a;
        moved.mask.query_offset -= 1;
        reference_table().attention_forward(s, moved);
    };
    wrong.attention_backward = [](const Stream& s, const AttentionBackward& a) {
        AttentionBackward moved = a;
        moved.mask.query_offset -= 1;
        reference_table().attention_backward(s, moved);
    };
    expect_noticed(wrong, "attention_forward");
    expect_noticed(wrong, "attention_backward");
}

// A convolution that runs over the boundaries of documents, and ones that forget the tokens around their own.
TEST(KernelCasesNotice, AConvolutionOfTheWrongTokens) {
    const auto check_noticed = [](auto change) {
        KernelTable wrong = reference_table();
        wrong.short_convolution_forward = [](const Stream& s, const ShortConvolution& f, View z) {
            std::vector<int32_t> memory;
            ShortConvolution other = f;
            decltype(change)()(other, memory);
            reference_table().short_convolution_forward(s, other, z);
        };
        wrong.short_convolution_backward_input = [](const Stream& s, const ShortConvolution& f,
                                                    const ShortConvolutionBackward& g) {
            std::vector<int32_t> memory;
            ShortConvolution other = f;
            decltype(change)()(other, memory);
            reference_table().short_convolution_backward_input(s, other, g);
        };
        wrong.short_convolution_backward_weight = [](const Stream& s, const ShortConvolution& f, View dz, View dw,
                                                     View dbias) {
            std::vector<int32_t> memory;
            ShortConvolution other = f;
            decltype(change)()(other, memory);
            reference_table().short_convolution_backward_weight(s, other, dz, dw, dbias);
        };
        for (const char* op : {"forward", "backward_input", "backward_weight"})
            expect_noticed(wrong, concat("short_convolution_", op));
    };
    check_noticed([](ShortConvolution& f, std::vector<int32_t>&) { f.before = {}; });
    check_noticed([](ShortConvolution& f, std::vector<int32_t>& memory) {
        memory.assign(static_cast<size_t>(f.positions.numel()), 1000);  // one document
        f.positions = View(memory.data(), DType::i32, f.positions.shape);
    });
    KernelTable wrong = reference_table();
    wrong.short_convolution_backward_input = [](const Stream& s, const ShortConvolution& f,
                                                const ShortConvolutionBackward& g) {
        ShortConvolutionBackward alone = g;
        alone.after = {};
        reference_table().short_convolution_backward_input(s, f, alone);
    };
    expect_noticed(wrong, "short_convolution_backward_input");
    wrong.short_convolution_state = [](const Stream& s, View b, View x, View, View state) {
        reference_table().short_convolution_state(s, b, x, {}, state);
    };
    expect_noticed(wrong, "short_convolution_state");
}

// Documents that begin where they would if the keys began at place 0.
TEST(KernelCasesNotice, AKeyOffsetThatDocumentsIgnore) {
    KernelTable wrong = reference_table();
    wrong.attention_forward = [](const Stream& s, const AttentionForward& a) {
        AttentionForward moved = a;
        moved.mask.query_offset -= std::exchange(moved.mask.key_offset, 0);
        reference_table().attention_forward(s, moved);
    };
    wrong.attention_backward = [](const Stream& s, const AttentionBackward& a) {
        AttentionBackward moved = a;
        moved.mask.query_offset -= std::exchange(moved.mask.key_offset, 0);
        reference_table().attention_backward(s, moved);
    };
    expect_noticed(wrong, "attention_forward");
    expect_noticed(wrong, "attention_backward");
}

// A window or a document that begins one key too late or too early.
TEST(KernelCasesNotice, ABeginningOffByOne) {
    const auto check_noticed = [](auto forward, auto backward) {
        KernelTable wrong = reference_table();
        wrong.attention_forward = forward;
        wrong.attention_backward = backward;
        expect_noticed(wrong, "attention_forward");
        expect_noticed(wrong, "attention_backward");
    };
    check_noticed(
        [](const Stream& s, const AttentionForward& a) {
            AttentionForward longer = a;
            longer.mask.window += a.mask.window > 0;
            reference_table().attention_forward(s, longer);
        },
        [](const Stream& s, const AttentionBackward& a) {
            AttentionBackward longer = a;
            longer.mask.window += a.mask.window > 0;
            reference_table().attention_backward(s, longer);
        });
    check_noticed(
        [](const Stream& s, const AttentionForward& a) {
            AttentionForward first_document = a;
            first_document.mask.first_key.strides = {};
            reference_table().attention_forward(s, first_document);
        },
        [](const Stream& s, const AttentionBackward& a) {
            AttentionBackward first_document = a;
            first_document.mask.first_key.strides = {};
            reference_table().attention_backward(s, first_document);
        });
}

// A token of another shard's rows, taken for one of the nearest row here.
TEST(KernelCasesNotice, ATokenOutsideOfTheRowsThatCounts) {
    KernelTable wrong = reference_table();
    static const auto held = [](View tokens, int64_t first_row, const View& rows) {
        std::vector<int64_t> nearest;
        for (int64_t n = 0; n < tokens.numel(); ++n)
            nearest.push_back(std::clamp<int64_t>(tokens.as<int32_t>()[n], first_row, first_row + rows.shape[0] - 1));
        return nearest;
    };
    wrong.embedding_forward = [](const Stream& s, View tokens, View weight, int64_t first_row, View y) {
        std::vector<int64_t> nearest = held(tokens, first_row, weight);
        tokens = View(nearest.data(), DType::i64, tokens.shape);
        reference_table().embedding_forward(s, tokens, weight, first_row, y);
    };
    wrong.embedding_backward = [](const Stream& s, View tokens, View dy, int64_t first_row, View dweight) {
        std::vector<int64_t> nearest = held(tokens, first_row, dweight);
        tokens = View(nearest.data(), DType::i64, tokens.shape);
        reference_table().embedding_backward(s, tokens, dy, first_row, dweight);
    };
    expect_noticed(wrong, "embedding_forward");
    expect_noticed(wrong, "embedding_backward");
}

TEST(KernelCasesNotice, PaddingThatCounts) {
    KernelTable wrong = reference_table();
    wrong.cross_entropy = [](const Stream& s, const CrossEntropy& c) {
        CrossEntropy all = c;
        all.vocab = c.logits.shape[1];
        reference_table().cross_entropy(s, all);
    };
    expect_noticed(wrong, "cross_entropy");
}

// A first shard whose words are taken for all, padding that counts, a gradient that has no target.
TEST(KernelCasesNotice, AShardThatDoesNotKnowItsPlace) {
    KernelTable wrong = reference_table();
    wrong.cross_entropy_partial = [](const Stream& s, const CrossEntropy& c) {
        CrossEntropy all = c;
        all.vocab = std::max(c.vocab, c.first_word + c.logits.shape[1]);
        reference_table().cross_entropy_partial(s, all);
    };
    expect_noticed(wrong, "cross_entropy_partial");
    expect_noticed(wrong, "cross_entropy_finish");
    wrong = reference_table();
    wrong.cross_entropy_finish = [](const Stream& s, const CrossEntropy& c) {
        CrossEntropy first = c;
        first.first_word = 0;
        reference_table().cross_entropy_finish(s, first);
    };
    expect_noticed(wrong, "cross_entropy_finish");
    wrong.cross_entropy_finish = [](const Stream& s, const CrossEntropy& c) {
        CrossEntropy one = c;
        if (c.partials.shape[0] > 1) --one.partials.shape[0];
        reference_table().cross_entropy_finish(s, one);
    };
    expect_noticed(wrong, "cross_entropy_finish");
}

// A premise of the other tests: the reference's shards together equal the reference's whole.
TEST(KernelCases, OfAReferenceInShards) {
    for (const char* dtype : {"f32", "bf16"})
        for (const char* op : {"cross_entropy", "cross_entropy_partial", "cross_entropy_finish"})
            EXPECT_FALSE(noticed(reference_table(), op, dtype)) << op << " " << dtype;
}

TEST(KernelCasesNotice, AMissingBiasCorrectionAndACopyOfTheOldWeights) {
    KernelTable wrong = reference_table();
    wrong.adamw = [](const Stream& s, const AdamW& a) {
        AdamW uncorrected = a;
        uncorrected.correction2 = 1;
        reference_table().adamw(s, uncorrected);
    };
    expect_noticed(wrong, "adamw");
    wrong.sgd = [](const Stream& s, const Sgd& a) {
        std::vector<OptimizerPiece> no_copy(a.pieces.begin(), a.pieces.end());
        for (OptimizerPiece& piece : no_copy) {
            if (piece.value.defined()) reference_table().cast(s, piece.master, piece.value);
            piece.value = {};
        }
        Sgd update = a;
        update.pieces = no_copy;
        reference_table().sgd(s, update);
    };
    EXPECT_TRUE(noticed(wrong, "sgd", "bf16"));
}

TEST(KernelCasesNotice, RoundingByThePlaceInAPieceSwappedDecaysAndPlainMomentum) {
    KernelTable wrong = reference_table();
    wrong.sgd = [](const Stream& s, const Sgd& a) {
        std::vector<OptimizerPiece> local(a.pieces.begin(), a.pieces.end());
        for (OptimizerPiece& piece : local) piece.elements = {0, 1, 1};
        Sgd update = a;
        update.pieces = local;
        reference_table().sgd(s, update);
    };
    EXPECT_TRUE(noticed(wrong, "sgd", "stochastic"));
    wrong.lion = [](const Stream& s, const Lion& a) {
        Lion swapped = a;
        std::swap(swapped.beta1, swapped.beta2);
        reference_table().lion(s, swapped);
    };
    expect_noticed(wrong, "lion");
    wrong.muon_momentum = [](const Stream& s, const MuonMomentum& a) {
        reference_table().muon_momentum(s, a);
        for (const OptimizerPiece& piece : a.pieces) reference_table().cast(s, piece.m.values, piece.update);
    };
    expect_noticed(wrong, "muon_momentum");
    wrong.muon_descent = [](const Stream& s, const MuonDescent& a) {
        std::vector<OptimizerPiece> unscaled(a.pieces.begin(), a.pieces.end());
        for (OptimizerPiece& piece : unscaled) piece.update_scale = 1;
        reference_table().muon_descent(s, {.pieces = unscaled, .lr = a.lr});
    };
    expect_noticed(wrong, "muon_descent");
}

TEST(KernelCasesNotice, DrawsFromThePaddingAndTopPBeforeTopK) {
    KernelTable wrong = reference_table();
    wrong.sample = [](const Stream& s, const Sample& d) {
        Sample padded = d;
        padded.vocab = d.logits.shape[1];
        reference_table().sample(s, padded);
    };
    expect_noticed(wrong, "sample");
    wrong.sample = [](const Stream& s, const Sample& d) {
        Sample all = d;
        if (d.top_p < 1) all.top_k = 0;
        reference_table().sample(s, all);
    };
    expect_noticed(wrong, "sample");
}

TEST(KernelCasesNotice, AMaskOfLocalRows) {
    KernelTable wrong = reference_table();
    wrong.dropout = [](const Stream& s, View x, const Dropout& d, View y) {
        Dropout local = d;
        local.column_offset = 0;
        reference_table().dropout(s, x, local, y);
    };
    expect_noticed(wrong, "dropout");
}

// 16-bit results that are cut off instead of rounded to nearest: half of them are one unit too small.
TEST(KernelCasesNotice, RoundingTowardsZero) {
    KernelTable wrong = reference_table();
    wrong.cast = [](const Stream& s, View x, View y) {
        if (x.dtype != DType::f32 || y.dtype != DType::bf16) return reference_table().cast(s, x, y);
        for (int64_t i = 0; i < x.numel(); ++i) y.as<uint16_t>()[i] = x.as<uint16_t>()[2 * i + 1];
    };
    EXPECT_TRUE(noticed(wrong, "cast", "f32 to bf16"));
}

}  // namespace
}  // namespace tutti::kernels
