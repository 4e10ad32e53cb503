// kernels/reference/kernels.h: the reference kernels, one per entry of kernel_table.h, which states shapes and
// formulas. The reference kernels define the correct result: plain loops, sums in double, each output rounded once, one
// thread, any float type. They may allocate a row of doubles to keep a formula readable; speed is not their purpose.
#pragma once

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::reference {

// elementwise.cpp
void fill(const Stream&, View y, float value);
void normal(const Stream&, const Normal& d);
void cast(const Stream&, View x, View y);
void copy(const Stream&, View x, View y);
void add(const Stream&, View a, View b, View y);
void accumulate(const Stream&, View x, View y);
void scale(const Stream&, View x, float factor);
void relu_forward(const Stream&, View x, View y);
void relu_backward(const Stream&, View dy, View y, View dx);
void gelu_forward(const Stream&, View x, View y);
void gelu_backward(const Stream&, View dy, View x, View dx);
void swiglu_forward(const Stream&, View gate, View up, View y);
void swiglu_backward(const Stream&, View dy, View gate, View up, View dgate, View dup);
void dropout(const Stream&, View x, const Dropout& dropout, View y);

// matrix.cpp: sums
void sums_of_squares(const Stream&, View x, View sums);
void exact_sum(const Stream&, View values, View words);
void bias_backward(const Stream&, View dy, View db);

// matrix.cpp: products
void gemm(const Stream&, const Gemm& gemm);

// matrix.cpp: embedding
void embedding_forward(const Stream&, View tokens, View weight, int64_t first_row, View y);
void embedding_backward(const Stream&, View tokens, View dy, int64_t first_row, View dweight);

// short_convolution.cpp
void short_convolution_forward(const Stream&, const ShortConvolution& f, View z);
void short_convolution_backward_input(const Stream&, const ShortConvolution& f, const ShortConvolutionBackward& g);
void short_convolution_backward_before(const Stream&, const ShortConvolution& f, View dz, View dbefore);
void short_convolution_backward_weight(const Stream&, const ShortConvolution& f, View dz, View dw, View dbias);
void short_convolution_state(const Stream&, View b, View x, View before, View state);

// norm.cpp
void norm_forward(const Stream&, const NormForward& f);
void norm_backward_input(const Stream&, const NormBackward& b);
void norm_backward_weight(const Stream&, View dy, View x, View mean, View rstd, View dw, View db);

// attention.cpp: rotary embedding
void rope(const Stream&, View x, View positions, View cosines, View sines, bool inverse, View y);
void rope_table(const Stream&, View frequencies, double amplitude, View cosines, View sines);

// attention.cpp
int64_t attention_workspace(const Stream&, const Shape& q, const Shape& k, bool backward);
void attention_forward(const Stream&, const AttentionForward& a);
void attention_backward(const Stream&, const AttentionBackward& a);
void attention_merge(const Stream&, View o, View lse, View o_part, View lse_part);

// loss.cpp
void cross_entropy(const Stream&, const CrossEntropy& c);
void cross_entropy_partial(const Stream&, const CrossEntropy& c);
void cross_entropy_finish(const Stream&, const CrossEntropy& c);
void squared_error(const Stream&, View x, View target, float grad_scale, View losses, View dx);

// loss.cpp: sampling
void sample(const Stream&, const Sample& s);

// experts.cpp: routing
void route(const Stream&, const Routing& r);
void route_backward(const Stream&, const RoutingBackward& b);
void balance(const Stream&, View bias, View counts, float mean, float rate);

// experts.cpp
void gather_rows(const Stream&, View x, View rows, View y);
void combine_rows(const Stream&, View x, View rows, View weights, View y);
void combine_rows_backward(const Stream&, View dy, View x, View rows, View weights, View dx, View dweights);
void grouped_gemm(const Stream& stream, const GroupedGemm& grouped);

// optimizer.cpp
void adamw(const Stream&, const AdamW& a);
void sgd(const Stream&, const Sgd& s);

}  // namespace tutti::kernels::reference
