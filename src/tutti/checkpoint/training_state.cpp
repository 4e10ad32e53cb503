#include "tutti/checkpoint/training_state.h"

#include <fmt/format.h>

#include <set>

namespace tutti::checkpoint {

std::string rank_file_name(int rank, int ranks) { return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, ranks); }

HostState::HostState(const std::vector<NamedTensor>& tensors, HostMemory memory) {
    for (const NamedTensor& t : tensors) {
        check(t.tensor.contiguous(), "checkpoint: ", t.name, " must be contiguous");
        Piece piece{t, nullptr};
        if (memory == HostMemory::copy || t.tensor.device().kind() != DeviceKind::cpu) {
            piece.copy = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(t.tensor.bytes()));
            t.tensor.device().copy_out(piece.copy.get(), t.tensor.view().data, t.tensor.bytes());
        }
        pieces_.push_back(std::move(piece));
    }
}

int64_t HostState::copied_bytes() const {
    int64_t sum = 0;
    for (const Piece& piece : pieces_) sum += piece.copy ? piece.source.tensor.bytes() : 0;
    return sum;
}

FileToWrite HostState::file(int rank, int ranks) const {
    std::vector<TensorToWrite> tensors;
    for (const Piece& piece : pieces_) {
        const Tensor& t = piece.source.tensor;
        const auto* data = piece.copy ? piece.copy.get() : t.view().as<const std::byte>();
        tensors.push_back({piece.source.name,
                           t.dtype(),
                           {t.shape().begin(), t.shape().end()},
                           std::span<const std::byte>(data, static_cast<size_t>(t.bytes()))});
    }
    return safetensors_file(rank_file_name(rank, ranks), std::move(tensors));
}

void load_tensors(const CheckpointReader& reader, const std::vector<NamedTensor>& tensors, bool whole) {
    const SafetensorsFile file = reader.safetensors(rank_file_name(0, 1));
    std::set<std::string> wanted;
    std::vector<std::byte> host;
    for (const NamedTensor& t : tensors) {
        wanted.insert(t.name);
        const TensorInfo& info = file.at(t.name);
        const std::vector<int64_t> shape(t.tensor.shape().begin(), t.tensor.shape().end());
        Shape stored;
        for (int64_t size : info.shape) stored.push_back(size);
        check<DataError>(info.shape == shape && info.dtype == t.tensor.dtype(), file.path(), ": ", t.name, " is ",
                         stored, " ", info.dtype, ", the model needs ", t.tensor.shape(), " ", t.tensor.dtype());
        host.resize(static_cast<size_t>(info.bytes()));
        file.read(t.name, host);
        t.tensor.device().copy_in(t.tensor.view().data, host.data(), info.bytes());
    }
    if (!whole) return;
    for (const TensorInfo& info : file.tensors())
        check<DataError>(wanted.contains(info.name), file.path(), ": holds ", info.name,
                         ", which this run does not have; was it another optimizer or model?");
}

}  // namespace tutti::checkpoint
